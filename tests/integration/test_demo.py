"""`./run demo` keeps its guarantees, and leaves no processes or files behind, however it ends."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from demo.check import Truth, check, compare
from demo.group_check import check_group, read_steps
from feedmux_server.core.positions.resume_token import ResumeToken
from tests.started import MARK, Started, marked
from tests.waiting import wait_until

DEMO = Path(__file__).parents[2] / "demo" / "demo.py"
NAMES = {"search-index", "cache", "audit-log", "reports", "billing", "analytics"}


def start(mark: str, *arguments: str) -> Started[str]:
    return Started(
        [sys.executable, str(DEMO), *arguments],
        env=os.environ | {MARK: mark},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def judged(*sessions: bytes, first: int = 0, stored: tuple[int, ...] = ()) -> dict[str, int]:
    """What the check finds of ten events named 0 to 9; only what is not 0."""
    truth = Truth([bytes([each]) for each in b"0123456789"], [ResumeToken.high_water_mark(at) for at in range(10)])
    result = check("someone", truth, first, stored, [[bytes([each]) for each in session] for session in sessions])
    names = ("lost", "repeated", "redelivered", "redelivered_acked", "out_of_order", "unexpected")
    found = {name: getattr(result, name) for name in names if getattr(result, name)}
    assert result.kept == (not found.keys() - {"redelivered"})
    return found


@pytest.mark.parametrize(
    ("sessions", "options", "found"),
    [
        ([b"0123456789"], {}, {}),
        ([b"01234", b"3456789"], {"stored": (3,)}, {"redelivered": 2}),
        ([b"01234", b"3456789"], {"stored": (4,)}, {"redelivered": 2, "redelivered_acked": 1}),
        ([b"01234", b"6789"], {"stored": (5,)}, {"lost": 1}),
        ([b"01233456789"], {}, {"repeated": 1}),
        ([b"0124356789"], {}, {"out_of_order": 1}),
        ([b"0123456789x"], {}, {"unexpected": 1}),
        ([b"3456789"], {"first": 4}, {"unexpected": 1}),
    ],
)
def test_the_check_sees_each_broken_promise(
    sessions: list[bytes], options: dict[str, Any], found: dict[str, int]
) -> None:
    assert judged(*sessions, **options) == found


def test_the_comparison_of_a_copy_sees_each_difference() -> None:
    one, two, three = ({"_id": number} for number in range(3))
    assert compare("r", 2, {b"1": one, b"2": two}, {b"1": dict(one), b"2": dict(two)}).kept
    broken = compare("r", 2, {b"1": one, b"2": two, b"3": three}, {b"1": two, b"4": one})
    assert (broken.kept, broken.missing, broken.differing, broken.extra) == (False, 2, 1, 1)


def grouped(*workers: str, killed_ns: dict[int, int] | None = None, set_aside: int = 0) -> dict[str, int]:
    """What the check finds of three changes of one order; only what is not 0. A worker's record: `begin 1 1` is at
    1 ns, for the first change."""
    records = [
        read_steps(
            f"{what} {at_ns} 7 {change}\n" for what, at_ns, change in zip(*[iter(worker.split())] * 3, strict=True)
        )
        for worker in workers
    ]
    letters = [(7, set_aside)] if set_aside else []
    result = check_group({7: 3}, records, killed_ns or {}, letters)
    found = {name: getattr(result, name) for name in ("lost", "repeated", "redelivered", "out_of_order", "shared")}
    assert result.kept(letters) == (not {name for name, count in found.items() if count} - {"redelivered"})
    return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize(
    ("workers", "options", "found"),
    [
        (["begin 1 1 end 2 1 begin 3 2 end 4 2", "begin 5 3 end 6 3"], {}, {}),
        (["begin 1 1 end 2 1 begin 3 2 end 4 2", "begin 3 3 end 6 3"], {}, {"shared": 1}),
        (["begin 1 1 end 2 1 begin 5 2 end 6 2", "begin 3 3 end 4 3"], {}, {"out_of_order": 1}),
        (["begin 1 1 end 2 1 begin 3 2 end 4 2", "begin 5 3 fail 6 3"], {}, {"lost": 1}),
        (["begin 1 1 end 2 1 begin 3 2 end 4 2", "begin 5 3 fail 6 3"], {"set_aside": 3}, {}),
        (
            ["begin 1 1 fail 2 1 begin 3 1 end 4 1", "begin 5 2 end 6 2 begin 7 3 end 8 3 begin 9 2 end 9 2"],
            {},
            {"repeated": 1},
        ),
        (["begin 1 1 end 2 1 begin 3 2", "begin 5 2 end 6 2 begin 7 3 end 8 3"], {"killed_ns": {0: 4}}, {}),
        (
            ["begin 1 1 end 2 1", "begin 4 1 end 5 1 begin 6 2 end 7 2 begin 8 3 end 9 3"],
            {"killed_ns": {0: 3}},
            {"redelivered": 1},
        ),
    ],
)
def test_the_check_of_a_group_sees_each_broken_promise(
    workers: list[str], options: dict[str, Any], found: dict[str, int]
) -> None:
    assert grouped(*workers, **options) == found


@pytest.mark.full
def test_a_group_keeps_its_promises() -> None:
    mark = f"group-{os.getpid()}"
    with start(mark, "--group", "--seconds", "6", "--rate", "200", "--json") as demo:
        out, err = demo.communicate(timeout=180)
    assert demo.returncode == 0, out + err
    report = json.loads(out.splitlines()[-1])
    assert report["kept"]
    assert report["written"] == report["processed"] + 1 > 100
    assert len(report["letters"]) == 1
    assert marked(mark) == []


def test_every_promise_is_kept() -> None:
    mark = f"whole-{os.getpid()}"
    with start(mark, "--seconds", "8", "--rate", "1000", "--json") as demo:
        assert demo.stderr is not None
        said = ""
        while (url := re.search(r"http://127\.0\.0\.1:\d+/metrics", said)) is None:
            line = demo.stderr.readline()
            assert line, said
            said += line
        with urllib.request.urlopen(url.group(), timeout=60) as page:
            assert b"feedmux_ready " in page.read()
        out, err = demo.communicate(timeout=180)
    assert demo.returncode == 0, said + err
    report = json.loads(out.splitlines()[-1])
    assert report["written"] == report["read_from_mongodb"] > 100
    assert {each["name"] for each in report["subscribers"]} == NAMES
    for each in report["subscribers"]:
        for promise in ("lost", "repeated", "redelivered_acked", "out_of_order", "unexpected"):
            assert each[promise] == 0, each
        assert each["received"] == each["expected"] + each["redelivered"]
    by_name = {each["name"]: each for each in report["subscribers"]}
    assert len(by_name["billing"]["sessions"]) == 2
    assert 0 < by_name["analytics"]["expected"] < report["written"]
    [replica] = report["replicas"]
    assert replica["name"] == "replica"
    assert (replica["missing"], replica["differing"], replica["extra"]) == (0, 0, 0)
    assert min(replica["copied"], replica["documents"]) > 100
    assert report["mongodb_cursors_most"] >= 1
    assert marked(mark) == []


@pytest.mark.parametrize(
    ("number", "after_s"), [(signal.SIGINT, 0.8), (signal.SIGINT, 2.5), (signal.SIGTERM, 6.0), (signal.SIGKILL, 6.0)]
)
def test_nothing_is_left_whatever_ends_it(number: signal.Signals, after_s: float) -> None:
    mark = f"{number.name}-{after_s}-{os.getpid()}"
    with start(mark, "--seconds", "30", "--rate", "500") as demo:
        time.sleep(after_s)
        demo.send_signal(number)
        _, err = demo.communicate(timeout=60)
    assert demo.returncode == (-9 if number is signal.SIGKILL else 130)
    assert "Traceback" not in err
    wait_until(lambda: not marked(mark), lambda: marked(mark))


@pytest.mark.parametrize("arguments", [["--seconds", "1"], ["--rate", "0"], ["--bogus"]])
def test_wrong_usage(arguments: list[str]) -> None:
    done = subprocess.run([sys.executable, str(DEMO), *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 2

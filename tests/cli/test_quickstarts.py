"""The README, PYPI.md and docs/quickstart: run the commands and programs of each page in their order."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from pymongo import MongoClient

from tests.cli.conftest import clean_environment
from tests.cli.guides import DOCS, run_steps, run_until
from tests.cli.pages import blocks
from tests.started import Started, ran
from tests.waiting import wait_until

REPOSITORY = DOCS.parent
START = "./run dev --workload\n"
BLOCK = re.compile(r"([^\n]*)\n\n```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 280.0
"""For a machine that has none of the packages yet."""

TOOLS = {
    "python": (),
    "go": ("go",),
    "node": ("node", "npm"),
    "java": ("java", "mvn"),
    "spark": (),
    "grpc": ("buf",),
}
CLIENTS = {"python": 0, "go": 1, "node": 0, "java": 128 + signal.SIGINT}
"""The pages with a program that Ctrl-C ends, and the exit code of its command then. For Go, it is that of `go run`."""
LONG = {"python", "java", "node", "spark"}
"""To install their packages takes more than the rest of the page."""
LONG_S = 840.0


@dataclass(frozen=True, slots=True)
class Step:
    """A piece of the script, and what the page says that it prints."""

    script: str
    printed: str = ""


def steps(page: str, key: str) -> list[Step]:
    """The page as a script, without the server's start: its programs are saved under the names that it gives."""
    found: list[Step] = []
    for before, kind, block in BLOCK.findall((DOCS / "quickstart" / f"{page}.md").read_text()):
        if kind == "sh":
            found.append(Step(block.replace("FEEDMUX_API_KEY=…", f"FEEDMUX_API_KEY={key}")))
        elif kind == "text":
            found[-1] = Step(found[-1].script, block)
        else:
            name = re.search(r"^Save this as `([\w./]+)`:$", before)
            assert name, f"{page}: no name for the program after {before!r}"
            found.append(Step(f"cat > {name[1]} <<'END_OF_PROGRAM'\n{block}END_OF_PROGRAM\n"))
    assert found[0].script == START
    return found[1:]


def shape(text: str) -> str:
    """Output without what differs from run to run."""
    for pattern, name in (
        (r"^go: .*\n", ""),  # Go says what it downloads.
        (r"\b[0-9a-f]{24}\b", "ID"),
        (r'"[\w+/=]{40,}"', "BYTES"),
        (r"^(insert|update|replace|delete)\b", "OPERATION"),
        (r"\d+", "N"),
    ):
        text = re.sub(pattern, name, text, flags=re.MULTILINE)
    return text


def shows(printed: str, output: str) -> bool:
    """Whether the output is what the page shows: once, or as often as a command is repeated. `…` is any lines."""
    lines = (r"(.*\n)*?" if line == "…\n" else re.escape(line) for line in shape(printed).splitlines(keepends=True))
    return re.fullmatch(f"({''.join(lines)})+", shape(output)) is not None


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this one as it is, because the pages build in it, and work beside it."""
    folder = tmp_path_factory.mktemp("quickstart") / "feedmux"
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    for name in filter(None, listed.stdout.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, folder / name)
    return folder


@contextmanager
def dev(folder: Path, *options: str) -> Iterator[dict[str, str]]:
    """What `feedmux dev` says of itself while it runs."""
    command = [sys.executable, "-m", "feedmux.cli", "dev", *options, "--port", "0", "--json"]
    with Started(
        command, cwd=folder, env=clean_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """That of a second terminal, with a server of `./run dev --workload` in the first."""
    with dev(tmp_path_factory.mktemp("dev"), *START.split()[2:], "--rate", "20") as told:
        yield {"FEEDMUX_ENDPOINT": told["endpoint"], "KEY": told["api_key"], "PYTHONPATH": ""}


Run = Callable[[str], tuple[list[Step], list[str]]]


@pytest.fixture(scope="module")
def run(checkout: Path, environment: dict[str, str]) -> Run:
    """Runs a page once: its steps, and what each printed."""

    @cache
    def run(page: str) -> tuple[list[Step], list[str]]:
        path = f"{Path(sys.executable).parent}:{clean_environment()['PATH']}"
        missing = [tool for tool in TOOLS[page] if shutil.which(tool, path=path) is None]
        if missing:
            pytest.skip(f"no {' and no '.join(missing)} on this machine")
        if not TOOLS[page] and find_spec("ensurepip") is None:
            pytest.skip("this Python makes no virtual environments with pip")
        page_steps = steps(page, environment["KEY"])
        timeout_s = LONG_S if page in LONG else TIMEOUT_S
        return page_steps, run_steps([step.script for step in page_steps], checkout, environment, timeout_s)

    return run


def each(*pages: str) -> pytest.MarkDecorator:
    long = pytest.mark.full, pytest.mark.timeout(LONG_S + 60)
    marked = [pytest.param(page, marks=long if page in LONG else ()) for page in pages]
    return pytest.mark.parametrize("page", marked)


@each(*TOOLS)
def test_the_page(page: str, run: Run) -> None:
    page_steps, outputs = run(page)
    assert any(step.printed for step in page_steps)
    for step, output in zip(page_steps, outputs, strict=True):
        assert not step.printed or shows(step.printed, output), f"the page says\n{step.printed}but it prints\n{output}"
    # The second run continues: no event of the subscription comes twice, and none comes late.
    everything = "".join(outputs)
    changes = [int(number) for number in re.findall(r"^change (\d+)", everything, re.MULTILINE)]
    assert changes == sorted(set(changes))
    batches = re.findall(r"^micro-batch (\d+)", everything, re.MULTILINE)
    committed = re.findall(r'"committed": {\s+"deliverySequence": "1",\s+"position": "(\S+)"', everything)
    assert len(changes) == 6 or batches == ["0", "1"] or len(set(committed)) == 2, everything


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A server like `environment`, but nothing changes in its MongoDB."""
    with dev(tmp_path_factory.mktemp("quiet")) as told:
        yield told


@each(*CLIENTS)
def test_ctrl_c_ends_the_program_in_silence(
    page: str, run: Run, checkout: Path, quiet: dict[str, str], tmp_path: Path
) -> None:
    page_steps, _ = run(page)
    command = [step.script for step in page_steps if step.script.count("\n") > 1][-1].splitlines()[-1]
    output = tmp_path / "output"
    with MongoClient[dict[str, Any]](quiet["mongodb"]) as mongo, output.open("w") as file:
        orders = mongo["shop"]["orders"]
        orders.insert_one({"changes": 0})
        credentials = {"FEEDMUX_ENDPOINT": quiet["endpoint"], "FEEDMUX_API_KEY": quiet["api_key"], "PYTHONPATH": ""}
        with Started(
            ["bash", "-c", f"exec {command}"],
            cwd=checkout.parent / f"orders-{page}",
            env=clean_environment() | credentials | {"checkout": str(checkout)},
            stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as program:  # fmt: skip
            try:
                # Updates alone: the program waits for inserts in the end.
                def has_printed() -> str:
                    assert program.poll() is None
                    orders.update_one({}, {"$inc": {"changes": 1}})
                    return output.read_text()

                wait_until(has_printed, lambda: "the program has printed nothing", guard_s=TIMEOUT_S, every_s=0.1)
                os.killpg(program.pid, signal.SIGINT)
                assert program.wait(60) == CLIENTS[page]
            finally:
                if program.poll() is None:
                    os.killpg(program.pid, signal.SIGKILL)
    assert set(shape(output.read_text()).splitlines()) == {"OPERATION ID"}


@pytest.mark.parametrize("page", ["README.md", "clients/python/PYPI.md"])
def test_the_first_steps(page: str, environment: dict[str, str], tmp_path: Path) -> None:
    endpoint, key = environment["FEEDMUX_ENDPOINT"], environment["KEY"]
    credentials = environment | {"FEEDMUX_API_KEY": key, "PYTHONPATH": str(REPOSITORY / "clients/python")}

    def here(text: str) -> str:
        return text.replace("./run feedmux", "feedmux").replace("…", key).replace("localhost:7117", endpoint)

    shell, *calls = map(here, blocks(page, "sh"))
    (printed,) = run_steps([shell], tmp_path, credentials)
    assert len(printed.splitlines()) == 5 * shell.count("--limit 5")
    program, watch = map(here, blocks(page, "python"))
    client = program.partition("with ")[0]
    run_until("^insert {'_id'", [sys.executable, "-u", "-c", program], tmp_path, credentials)
    run_until("^{'_id': .*'insert'", [sys.executable, "-u", "-c", client + watch], tmp_path, credentials)
    for call in calls:
        run_until("operationType", ["bash", "-c", call], tmp_path, credentials)


def test_the_examples_of_the_python_client(environment: dict[str, str], tmp_path: Path) -> None:
    programs = list(blocks("clients/python/README.md", "python"))
    credentials = {"FEEDMUX_API_KEY": environment["KEY"], "PYTHONPATH": str(REPOSITORY / "clients/python")}
    assert programs
    for program in programs:
        env = clean_environment() | environment | credentials
        done = ran(sys.executable, "-c", program, cwd=tmp_path, env=env, timeout_s=TIMEOUT_S)
        assert done.returncode == 0, f"{program}\n{done.stdout}{done.stderr}"
        assert done.stdout


def test_every_page_is_run() -> None:
    assert {page.stem for page in (DOCS / "quickstart").glob("*.md")} == set(TOOLS)

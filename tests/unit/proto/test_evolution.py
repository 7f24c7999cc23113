"""The definition may grow, and nothing that was released may change (proto/README.md)."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.servers import REPOSITORY

PROTO = REPOSITORY / "proto"

BREAKING = {
    "a field is gone": ("change_feed", r"  string routing_key = 8;\n", "", "routing_key"),
    "a field is reserved": ("change_feed", r"string routing_key = 8;", "reserved 8;", "routing_key"),
    "a field has another number": ("change_feed", r"event_count = 2;", "event_count = 22;", "event_count"),
    "a field has another type": ("change_feed", r"int32 event_count = 2;", "int64 event_count = 2;", "event_count"),
    "a field has another name": ("change_feed", r"int32 event_count = 2;", "int32 events = 2;", "event_count"),
    "one became many": ("change_feed", r"bytes bson = 15;", "repeated bytes bson = 15;", "bson"),
    "a field left its oneof": (
        "change_feed",
        r"(message WatchResponse {.*?oneof message {)(.*?)(    // [^\n]+\n    Notice notice = 6;\n)(  })",
        r"\1\2\4\n\3",
        "notice",
    ),
    "a reason is gone": ("errors", r"  // ABORTED\. The session lost.*?\n.*?FENCED = 60;\n", "", "60"),
    "a reason has another name": ("errors", r"REASON_FENCED", "REASON_EVICTED", "FENCED"),
    "a call is gone": ("change_feed", r"  rpc Watch\(.*?;\n", "", "Watch"),
    "a call answers otherwise": (
        "change_feed",
        r"returns \(stream WatchResponse\)",
        "returns (WatchResponse)",
        "Watch",
    ),
    "a message has another name": ("change_feed", r"\bCommitted\b", "Stored", "Committed"),
    "the package has another name": ("errors", r"package feedmux\.v1;", "package feedmux.v2;", "feedmux.v1"),
}

ALLOWED = {
    "a new field": ("change_feed", r"(string routing_key = 8;)", r"\1\n  // Optional. New.\n  string shard = 99;"),
    "a new kind of notice": (
        "change_feed",
        r"(Degraded degraded = 5;)",
        r"\1\n    // New.\n    HistoryAtRisk again = 99;",
    ),
    "a new reason": ("errors", r"(ERROR_REASON_INTERNAL = 90;)", r"\1\n  // ABORTED. New.\n  ERROR_REASON_NEW = 91;"),
    "a new call": (
        "change_feed",
        r"(  rpc Watch\(.*?;\n)",
        r"\1  // New.\n  rpc Peek(WatchRequest) returns (WatchResponse);\n",
    ),
    "a deprecated field": ("change_feed", r"string routing_key = 8;", "string routing_key = 8 [deprecated = true];"),
    "another comment": ("change_feed", r"// The session is open\.", "// Open."),
}


def changed(folder: Path, file: str, pattern: str, replacement: str) -> Path:
    """The definition with one change."""
    proto = Path(shutil.copytree(PROTO, folder / "proto"))
    path = proto / "feedmux" / "v1" / f"{file}.proto"
    text, count = re.subn(pattern, replacement, path.read_text("utf-8"), flags=re.DOTALL)
    assert count >= 1, f"{pattern!r} stands nowhere"
    path.write_text(text, "utf-8")
    return proto


def compared(proto: Path) -> subprocess.CompletedProcess[str]:
    """As in `./run lint`."""
    buf = Path(sys.executable).with_name("buf")
    command = [str(buf), "breaking", str(proto), "--against", str(PROTO / "last_release.yaml")]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False)


def test_nothing_released_has_changed() -> None:
    checked = compared(PROTO)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("case", BREAKING)
def test_a_breaking_change_is_refused(tmp_path: Path, case: str) -> None:
    file, pattern, replacement, named = BREAKING[case]
    checked = compared(changed(tmp_path, file, pattern, replacement))
    assert checked.returncode == 100, checked.stdout + checked.stderr
    assert named in checked.stdout


@pytest.mark.parametrize("case", ALLOWED)
def test_the_definition_may_grow(tmp_path: Path, case: str) -> None:
    checked = compared(changed(tmp_path, *ALLOWED[case]))
    assert checked.returncode == 0, checked.stdout + checked.stderr

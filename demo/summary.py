"""The result of the demo, as text and as one JSON object."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from demo.check import ReplicaResult, Result
from demo.observer import Snapshot
from feedmux.cli.terminal import Terminal


def as_json(
    written: int, in_mongodb: int, results: Sequence[Result], replicas: Sequence[ReplicaResult], now: Snapshot
) -> dict[str, Any]:
    """Return the result as a JSON object. `written` counts the acknowledged writes."""
    return {
        "written": written,
        "read_from_mongodb": in_mongodb,
        "kept": written == in_mongodb and all(each.kept for each in results) and all(each.kept for each in replicas),
        "shared_streams_most": now.streams_most,
        "mongodb_cursors_most": now.cursors_most,
        "subscribers": [asdict(each) for each in results],
        "replicas": [asdict(each) for each in replicas],
    }


def tell(
    terminal: Terminal,
    written: int,
    in_mongodb: int,
    results: Sequence[Result],
    replicas: Sequence[ReplicaResult],
    now: Snapshot,
) -> None:
    """Print one sentence for each promise."""

    def line(kept: bool, text: str) -> None:
        mark = terminal.paint("✓", "green", "bold") if kept else terminal.paint("✗", "red", "bold")
        print(f" {mark} {text}", file=terminal.stream)

    kinds = ", ".join(f"{count:,} {name}" for name, count in now.kinds.items())
    print(
        f"\n{terminal.paint('What happened', 'bold')}: {written:,} changes were written ({kinds}).",
        file=terminal.stream,
    )
    if written != in_mongodb:
        line(False, f"MongoDB's own change stream has {in_mongodb:,} of them: the check itself is broken.")
    _promise(
        line,
        results,
        "lost",
        "Nothing was lost: {count} subscribers got every event byte for byte as MongoDB gives it.",
    )
    _promise(line, results, "unexpected", "Nothing came that was not written.")
    _promise(line, results, "repeated", "Nothing was repeated within a session.")
    _promise(line, results, "out_of_order", "Every event came in order.")
    for result in results:
        if len(result.sessions) > 1:
            line(
                not result.redelivered_acked,
                f"{result.name} was killed (kill -9) after {result.sessions[0]:,} events and started again:"
                f" {result.redelivered:,} came again,"
                + (
                    f" {result.redelivered_acked:,} of them before its stored position."
                    if result.redelivered_acked
                    else " only what it had not acknowledged."
                    if result.redelivered
                    else " because all had been acknowledged."
                ),
            )
        elif result.expected < written:
            line(not result.lost, f"{result.name} joined late, from an earlier position: {result.received:,} events.")
    for each in replicas:
        line(
            each.kept,
            f"{each.name} copied {each.copied:,} documents while the others were live, and followed:"
            + (
                f" it has the {each.documents:,} documents of the collection, each as it is there."
                if each.kept
                else f" it lacks {each.missing:,} documents, has {each.differing:,} others and {each.extra:,} too many."
            ),
        )
    print(
        f"   MongoDB held at most {now.cursors_most} change-stream"
        f" cursor{'s' * (now.cursors_most != 1)} for {now.subscribers_most} subscribers.",
        file=terminal.stream,
    )
    next_command = terminal.paint("./run dev --workload", "bold")
    print(f"\nNext: {next_command} starts the same servers, to try them out.", file=terminal.stream)


def _promise(line: Any, results: Sequence[Result], name: str, kept: str) -> None:
    broken = [(result.name, getattr(result, name)) for result in results if getattr(result, name)]
    if broken:
        line(False, f"{name.replace('_', ' ')}: " + ", ".join(f"{who} {count:,}" for who, count in broken))
    else:
        line(True, kept.format(count=len(results)))

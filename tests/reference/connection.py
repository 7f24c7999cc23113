"""Write what follows from the client's table of connection states: `python -m tests.reference.connection`. With
`--check`, compare instead, and exit with 1 on a difference.

These are the diagram in docs/protocol.md, and the vectors that the clients in the other languages compare their tables
with.
"""

import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import grpc

from feedmux.connection_states import TABLE, Event, State
from feedmux.errors import ProtocolError, make_error
from feedmux.recovery import EVENTS, next_step
from tests.written import Written

COMMAND: Final = "python -m tests.reference.connection"
ROOT: Final = Path(__file__).parents[2]
BEGIN: Final = f"<!-- written by {COMMAND} -->\n"
END: Final = "<!-- end -->\n"

REASONS: Final = (
    ("", ""),
    *(("FENCED", cause) for cause in ("", "SEEK", "UPDATE", "LEASE", "TAKEOVER", "DELETE")),
    ("GRANTS_CHANGED", ""),
    ("UNAUTHENTICATED", ""),
    ("QUOTA_EXCEEDED", ""),
    ("INTERNAL", ""),
    ("A_REASON_TO_COME", ""),
)
"""Reasons and causes: those that the rules name, and some that they do not."""


def diagram() -> str:
    labels: dict[tuple[State, State], list[str]] = {}
    for (state, event), after in TABLE.items():
        if state is not State.ENDED:
            labels.setdefault((state, after.state), []).append(event.value)
    lines = [f"    {begin.value} --> {end.value}: {', '.join(each)}\n" for (begin, end), each in labels.items()]
    return f"```mermaid\nstateDiagram-v2\n    [*] --> {State.OPENING.value}\n{''.join(lines)}    Ended --> [*]\n```\n"


def page(written: str) -> str:
    before, _, rest = written.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{diagram()}\n{END}{after}"


def transitions() -> Iterator[dict[str, str | None]]:
    """Each state with each event; `next` is null if the pair is illegal."""
    for state, event in itertools.product(State, Event):
        after = TABLE.get((state, event))
        yield {
            "state": state.name,
            "event": event.name,
            "next": after and after.state.name,
            "action": after and after.action.name,
        }


def decisions() -> Iterator[dict[str, str | bool]]:
    """Each error, with what a session does about it. Fields that are false or empty are left out."""
    statuses = [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
    for status, (reason, cause) in itertools.product(statuses, REASONS):
        for retry_info, new_token in itertools.product((False, True), repeat=2):
            error = make_error(status, "", reason, {"cause": cause}, 1.0 if retry_info else None)
            yield _decision(
                status=status,
                reason=reason,
                cause=cause,
                retry_info=retry_info,
                new_token=new_token,
                step=next_step(error, has_other_credentials=new_token).name,
            )
    for new_token in (False, True):
        step = next_step(ProtocolError(""), has_other_credentials=new_token).name
        yield _decision(violation=True, new_token=new_token, step=step)


def _decision(**fields: str | bool) -> dict[str, str | bool]:
    return {name: value for name, value in fields.items() if value}


def vectors() -> str:
    lists: dict[str, Sequence[Any]] = {
        "transitions": list(transitions()),
        "decisions": list(decisions()),
        "events": [{"step": step.name, "event": event.name} for step, event in EVENTS.items()],
    }
    texts = (
        f'  "{name}": [\n' + ",\n".join(f"    {json.dumps(each)}" for each in cases) + "\n  ]"
        for name, cases in lists.items()
    )
    return f'{{\n  "written_by": "{COMMAND}",\n' + ",\n".join(texts) + "\n}\n"


PROTOCOL: Final = ROOT / "docs/protocol.md"
VECTORS: Final = ROOT / "tests/conformance/clients/vectors/connection.json"
WRITTEN: Final = Written(COMMAND, {PROTOCOL: lambda: page(PROTOCOL.read_text("utf-8")), VECTORS: vectors})

if __name__ == "__main__":
    sys.exit(WRITTEN.main(sys.argv[1:]))

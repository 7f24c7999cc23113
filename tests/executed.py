"""How much Python runs: what work costs, the same on each machine."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType, ModuleType
from typing import Any, Literal


class Executed:
    count = 0


@contextmanager
def executed(*modules: ModuleType, what: Literal["line", "opcode"] = "line") -> Iterator[Executed]:
    """Count the lines, or instructions, that run of these modules; without any, of all."""
    found, files, before = Executed(), {each.__file__ for each in modules}, sys.gettrace()

    def trace(frame: FrameType, event: str, _: object) -> Any:
        if event == what:
            found.count += 1
            return trace
        frame.f_trace_opcodes = what == "opcode"
        return trace if not files or frame.f_code.co_filename in files else None

    sys.settrace(trace)
    try:
        yield found
    finally:
        sys.settrace(before)

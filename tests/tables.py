"""One test over a table of values (docs/testing.md, "What a test may rest on", rule 9)."""

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Test = Callable[..., None]


def over(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each row, as `pytest.mark.parametrize` would, but in one test: a failure names its row, and ends
    the test. `@pytest.mark.parametrize` is for arguments with which other code runs."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    rows = list(rows)

    def decorate(test: Test) -> Test:
        @functools.wraps(test)
        def over_all(**fixtures: Any) -> None:
            assert rows, "a table without rows tests nothing"
            for row in rows:
                values = (row,) if len(names) == 1 else row
                try:
                    test(**dict(zip(names, values, strict=True)), **fixtures)
                except BaseException as error:
                    error.add_note(f"with {', '.join(names)} = {row!r:.2000}")
                    raise

        parameters = inspect.signature(test).parameters.values()
        over_all.__signature__ = inspect.Signature([each for each in parameters if each.name not in names])  # type: ignore[attr-defined]
        return over_all

    return decorate

"""One test over a table of values (docs/testing.md, "What a test may rest on", rule 9)."""

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

Test = Callable[..., Any]


def over(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Test], Test]:
    """Run a test for each row, as `pytest.mark.parametrize` would, but in one test: a failure names its row, and ends
    the test. `@pytest.mark.parametrize` is for arguments with which other code runs."""
    names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
    rows = list(rows)

    def decorate(test: Test) -> Test:
        @contextmanager
        def noted(row: Any) -> Iterator[dict[str, Any]]:
            try:
                yield dict(zip(names, (row,) if len(names) == 1 else row, strict=True))
            except BaseException as error:
                error.add_note(f"with {', '.join(names)} = {row!r:.2000}")
                raise

        @functools.wraps(test)
        def over_all(**fixtures: Any) -> None:
            assert rows, "a table without rows tests nothing"
            for row in rows:
                with noted(row) as values:
                    test(**values, **fixtures)

        @functools.wraps(test)
        async def over_all_async(**fixtures: Any) -> None:
            assert rows, "a table without rows tests nothing"
            for row in rows:
                with noted(row) as values:
                    await test(**values, **fixtures)

        made: Any = over_all_async if inspect.iscoroutinefunction(test) else over_all
        parameters = inspect.signature(test).parameters.values()
        made.__signature__ = inspect.Signature([each for each in parameters if each.name not in names])
        return made  # type: ignore[no-any-return]

    return decorate

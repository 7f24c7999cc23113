"""What the pages of docs/reference have in common: text of the sources as Markdown."""

import re
from collections.abc import Iterable

_CODE = re.compile(r"(`[^`]*`)")
_PAGE = re.compile(r"\bdocs/([\w-]+\.md)")


def prose(text: str) -> str:
    """Text of a docstring or a comment: on one line, with links to the pages that the text names."""
    parts = _CODE.split(" ".join(text.split()))
    parts[::2] = (_PAGE.sub(r"[docs/\1](../\1)", part.replace("<", "&lt;")) for part in parts[::2])
    return "".join(parts)


def table(titles: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table."""
    head, *lines = (
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in (tuple(titles), *rows)
    )
    return "".join((head, "|---" * (head.count(" | ") + 1), "|\n", *lines))


def anchor(heading: str) -> str:
    """The anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def described(text: str | None, what: str) -> str:
    """The description as prose. Raises ValueError if there is none: it has to be written in the source."""
    if not text:
        raise ValueError(f"{what} has no description")
    return prose(text)

"""What a tenant may see: grants, and which of them judges a namespace.

A tenant's grants are a list. A namespace is judged by the first grant whose patterns match it, and by none other; one
that no grant matches is not granted. A tenant without grants (None, not an empty list) sees everything that feedmux
serves. What a grant withholds inside its namespaces is compiled by `stages`.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import bson

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.grants.match import check_match, check_path, is_text

GRANTS_MAX: Final = 100
HIDDEN_MAX: Final = 100
PATTERN_BYTES_MAX: Final = 255


@dataclass(frozen=True, slots=True)
class Grant:
    """Namespaces by pattern, and what of their documents is shown.

    In a pattern `*` stands for any run of characters, dots included and also none, and `?` for exactly one; every
    other character stands for itself. Upper and lower case differ.
    """

    source: str
    database: str
    collection: str
    match: bytes = b""
    """BSON of the condition that a document must meet, in the language of `match`; empty for none."""
    hide: tuple[str, ...] = ()
    """Dotted paths, sorted, none within another."""

    @property
    def is_plain(self) -> bool:
        """Whether everything in the grant's namespaces is shown."""
        return not self.match and not self.hide

    @property
    def whole_database(self) -> bool:
        return is_any(self.collection)

    def covers(self, scope: Scope) -> bool:
        """Whether the grant's patterns reach into the scope."""
        return (
            fits(self.source, scope.source)
            and (not scope.database or fits(self.database, scope.database))
            and (not scope.collection or fits(self.collection, scope.collection))
        )


Grants = tuple[Grant, ...] | None
"""None: the tenant has no grants of its own and sees all. Empty: nothing."""


def make_grant(
    source: str, database: str, collection: str, match: Mapping[str, Any] | None = None, hide: Iterable[str] = ()
) -> Grant:
    """Raises ValueError with what is wrong."""
    for name, pattern in (("source", source), ("database", database), ("collection", collection)):
        _check_pattern(name, pattern)
    paths = sorted(set(hide))
    if len(paths) > HIDDEN_MAX:
        raise ValueError(f"hide has more than {HIDDEN_MAX} paths")
    for path in paths:
        check_path("hide", path)
        if path.partition(".")[0] == "_id":
            raise ValueError("hide: _id cannot be hidden; it is part of every resume token of MongoDB")
    kept = tuple(path for path in paths if not any(path.startswith(f"{other}.") for other in paths))
    if match is None:
        return Grant(source, database, collection, b"", kept)
    check_match(match)
    return Grant(source, database, collection, bson.encode(dict(match)), kept)


def granted(grants: tuple[Grant, ...], scope: Scope) -> tuple[Grant, ...]:
    """The grants that judge what a feed of this scope shows, in their order.

    Raises NAMESPACE_DENIED, in the same words whether the namespace exists or not.
    """
    found = tuple(grant for grant in grants if grant.covers(scope))
    if not found:
        raise denied(scope)
    return found[:1] if scope.collection else found


def denied(scope: Scope) -> FeedmuxError:
    return FeedmuxError(
        ErrorReason.NAMESPACE_DENIED,
        "this namespace is not granted; the server's tenants file defines the grants of a tenant",
        {"source": scope.source, "namespace": scope.namespace},
    )


def is_any(pattern: str) -> bool:
    return set(pattern) == {"*"}


def is_exact(pattern: str) -> bool:
    return not set(pattern) & {"*", "?"}


def fits(pattern: str, name: str) -> bool:
    return _compiled(pattern).fullmatch(name) is not None


def regex_of(pattern: str) -> str:
    """The pattern as a regular expression that Python and MongoDB (PCRE, option `s`) read alike; without anchors."""
    first, *others = [_literal(part) for part in pattern.split("*")]
    if not others:
        return first
    # Between two `*` the first match is as good as any later one. An atomic group keeps it: with backtracking, each
    # further `*` would multiply the time by the length of the name, and tenants choose the names.
    middle = "".join(f"(?>.*?{part})" for part in others[:-1] if part)
    return f"{first}{middle}.*{others[-1]}"


def _literal(part: str) -> str:
    return "".join(
        "." if char == "?" else char if char.isalnum() or char == "_" or ord(char) > 127 else f"\\{char}"
        for char in part
    )


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(regex_of(pattern), re.DOTALL)


def _check_pattern(name: str, pattern: str) -> None:
    if not pattern:
        raise ValueError(f"{name} is empty; * stands for any")
    if not is_text(pattern, PATTERN_BYTES_MAX):
        raise ValueError(f"{name} is over {PATTERN_BYTES_MAX} bytes, holds NUL, or is not valid Unicode")

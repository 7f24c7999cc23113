"""The private names of pymongo that `source.cursor` uses (docs/adr/0002), checked when this is imported.

Raises ImportError, with the releases of pymongo that the server works with, where a name is missing or has changed.
"""

import inspect
from collections.abc import Iterator
from typing import Any, Final

import pymongo
from pymongo.asynchronous.client_session import AsyncClientSession
from pymongo.asynchronous.command_cursor import AsyncCommandCursor, AsyncRawBatchCommandCursor
from pymongo.asynchronous.mongo_client import AsyncMongoClient

RELEASES: Final = "4.16 to 4.20"
"""Those that the tests pass with: see tests/packaging."""


def unfit(what: str) -> ImportError:
    """The error about a pymongo that lacks `what`."""
    return ImportError(
        f"the server works with pymongo {RELEASES}, and {pymongo.version} is installed: it lacks {what}", name="pymongo"
    )


try:
    from bson import _array_of_documents_to_buffer
    from pymongo.asynchronous.aggregation import _DatabaseAggregationCommand
    from pymongo.message import _CursorAddress
    from pymongo.operations import _Op
except ImportError as error:
    raise unfit(f"a name ({error.msg})") from error

__all__ = ["_CursorAddress", "_DatabaseAggregationCommand", "_Op", "_array_of_documents_to_buffer"]

_CALLED: Final[tuple[tuple[type, str, int, tuple[str, ...]], ...]] = (
    (_DatabaseAggregationCommand, "__init__", 4, ("user_fields",)),
    (AsyncMongoClient, "_retryable_read", 3, ("operation", "address", "retryable")),
    (AsyncMongoClient, "_close_cursor_soon", 2, ()),
    (AsyncRawBatchCommandCursor, "_unpack_response", 3, ("user_fields", "legacy_response")),
)
"""Methods, with how many positional and which named arguments they take here."""
_SET: Final[tuple[tuple[type, frozenset[str]], ...]] = (
    (AsyncCommandCursor, frozenset({"_postbatchresumetoken", "_max_await_time_ms", "_killed", "_id", "_ns"})),
    (AsyncClientSession, frozenset({"_server_session"})),
)
"""Attributes that a new object has."""


def missing() -> Iterator[str]:
    """What the installed pymongo lacks."""
    for owner, name, count, named in _CALLED:
        method: Any = getattr(owner, name, None)
        try:
            inspect.signature(method).bind(None, *[None] * count, **dict.fromkeys(named))
        except TypeError:
            yield f"{owner.__name__}.{name} as it was"
    for owner, names in _SET:
        yield from (f"{owner.__name__}.{name}" for name in sorted(names - set(owner.__init__.__code__.co_names)))  # type: ignore[misc]


if any(missing()):
    raise unfit(", ".join(missing()))

"""Checks which names are well-formed, and which namespaces nobody may watch.

feedmux's own names (sources, subscriptions) follow one narrow rule; databases and collections follow
MongoDB's. What a tenant's grant allows is decided elsewhere.
"""

from string import ascii_letters, digits
from typing import Final

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import Scope

NAME_BYTES_MAX: Final = 120
DATABASE_BYTES_MAX: Final = 63
NAMESPACE_BYTES_MAX: Final = 255
_NAME_FIRST: Final = frozenset(ascii_letters + digits)
_NAME_REST: Final = _NAME_FIRST | frozenset("._-")
_DATABASE_REFUSED: Final = frozenset('/\\. "$')
_INTERNAL_DATABASES: Final = frozenset({"admin", "local", "config"})


def check_name(field: str, value: str) -> None:
    """A name of feedmux's own. Raises FeedmuxError NAME_INVALID."""
    if not value:
        raise _invalid(field, "must not be empty")
    if len(value) > NAME_BYTES_MAX:
        raise _invalid(field, f"must not be longer than {NAME_BYTES_MAX} bytes")
    if value[0] not in _NAME_FIRST or not _NAME_REST.issuperset(value):
        raise _invalid(field, "must be letters, digits, '.', '_' and '-', beginning with a letter or digit")


def check_scope(scope: Scope) -> None:
    """Raises FeedmuxError NAME_INVALID or NAMESPACE_DENIED."""
    if not scope.source:
        raise _invalid("source", "must be the name of a MongoDB deployment in the server's configuration, such as main")
    check_name("source", scope.source)
    if scope.database:
        _check_database(scope.database)
    if scope.collection:
        if not scope.database:
            raise _invalid("collection", "needs a database")
        _check_collection(scope.database, scope.collection)


def is_served(database: str, collection: str) -> bool:
    """Whether feedmux serves the namespace to anybody."""
    return database not in _INTERNAL_DATABASES and not collection.startswith("system.")


def _check_database(database: str) -> None:
    _check_text("database", database, DATABASE_BYTES_MAX)
    if not _DATABASE_REFUSED.isdisjoint(database):
        raise _invalid("database", "must not contain '/', '\\', '.', '\"', '$' or a space")
    if database == "*":
        # Its feeds would have the fingerprint and the route of those of the whole deployment.
        raise _invalid("database", "must not be '*': leave it empty for the whole deployment")
    if database in _INTERNAL_DATABASES:
        raise _denied(database)


def _check_collection(database: str, collection: str) -> None:
    limit = NAMESPACE_BYTES_MAX - len(database.encode()) - 1
    _check_text("collection", collection, limit)
    if collection.startswith("."):
        raise _invalid("collection", "must not begin with '.'")
    if "$" in collection:
        raise _invalid("collection", "must not contain '$'")
    if collection.startswith("system."):
        raise _denied(f"{database}.{collection}")


def _check_text(field: str, value: str, bytes_max: int) -> None:
    try:
        encoded = value.encode()
    except UnicodeEncodeError:
        raise _invalid(field, "must be valid Unicode") from None
    if len(encoded) > bytes_max:
        raise _invalid(field, f"must not be longer than {bytes_max} bytes")
    if b"\0" in encoded:
        raise _invalid(field, "must not contain NUL")


def _invalid(field: str, rule: str) -> FeedmuxError:
    return FeedmuxError(ErrorReason.NAME_INVALID, f"{field} {rule}", {"field": field}, field=field)


def _denied(namespace: str) -> FeedmuxError:
    return FeedmuxError(
        ErrorReason.NAMESPACE_DENIED,
        "change streams of MongoDB's internal databases and collections are not served",
        {"namespace": namespace},
    )

"""What a client, a database and a collection have in pymongo besides `watch`: names, options, attributes, errors.

Shared by the synchronous and the asynchronous classes, which say by type arguments which of them belong together.
pymongo's own code checks the options, so that errors have pymongo's messages.
"""

from dataclasses import dataclass, field, replace
from typing import Any, Generic, NoReturn, Self, TypeVar

from bson.codec_options import CodecOptions
from pymongo import ReadPreference
from pymongo.common import BaseObject
from pymongo.errors import ConfigurationError, InvalidName
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import _ServerMode
from pymongo.write_concern import WriteConcern

from feedmux.api import Api


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """The options that `with_options` sets. A read preference of None means that of the server's source."""

    codec_options: CodecOptions[Any]
    read_preference: _ServerMode | None = None
    write_concern: WriteConcern = field(default_factory=WriteConcern)
    read_concern: ReadConcern = field(default_factory=ReadConcern)

    def having(
        self,
        codec_options: CodecOptions[Any] | None,
        read_preference: _ServerMode | None,
        write_concern: WriteConcern | None,
        read_concern: ReadConcern | None,
    ) -> "TargetOptions":
        """Return these options with the given changes. Raises TypeError as pymongo does."""
        checked = BaseObject(
            codec_options or self.codec_options,
            read_preference or self.read_preference or ReadPreference.PRIMARY,
            write_concern or self.write_concern,
            read_concern or self.read_concern,
        )
        return replace(
            self,
            codec_options=checked.codec_options,
            read_preference=read_preference or self.read_preference,
            write_concern=checked.write_concern,
            read_concern=checked.read_concern,
        )


class WatchTarget:
    """Something that can be watched."""

    _scope: tuple[str | None, str | None] = None, None
    """The names of the database and of the collection."""

    def __init__(self, api: Api, options: TargetOptions) -> None:
        self._api = api
        self._options = options

    @property
    def codec_options(self) -> CodecOptions[Any]:
        """The options for decoding documents and for encoding values in pipelines."""
        return self._options.codec_options

    @property
    def read_preference(self) -> _ServerMode:
        """The read preference, as in pymongo; `with_options` sets it.

        If it was not set, the server's source decides.
        """
        return self._options.read_preference or ReadPreference.PRIMARY

    @property
    def write_concern(self) -> WriteConcern:
        """The write concern, as in pymongo; it has no effect here."""
        return self._options.write_concern

    @property
    def read_concern(self) -> ReadConcern:
        """The read concern, as in pymongo.

        For change streams MongoDB accepts only `majority`, which is also its default.
        """
        return self._options.read_concern


class NamedTarget(WatchTarget):
    """A database or a collection. As in pymongo, it is not iterable and has no truth value."""

    __iter__ = None

    def __next__(self) -> NoReturn:
        raise TypeError(f"{type(self).__name__!r} object is not iterable")

    next = __next__

    def __bool__(self) -> NoReturn:
        kind = "database" if isinstance(self, DatabaseTarget) else "collection"
        raise NotImplementedError(
            f"{type(self).__name__} objects do not implement truth value testing or bool()."
            f" Please compare with None instead: {kind} is not None"
        )


Client = TypeVar("Client", bound=WatchTarget)
Database = TypeVar("Database", bound="DatabaseTarget[Any, Any]")
Collection = TypeVar("Collection", bound="CollectionTarget[Any]")


class DatabaseTarget(NamedTarget, Generic[Client, Collection]):
    """What both kinds of database share. Raises TypeError and InvalidName for a name as pymongo does."""

    _collection_class: type[Collection]

    def __init__(self, client: Client, name: str, options: TargetOptions) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be an instance of str, not {type(name)}")
        _check_database_name(name)
        super().__init__(client._api, options)
        self._client = client
        self._name = name
        self._scope = name, None

    @property
    def name(self) -> str:
        """The database's name."""
        return self._name

    @property
    def client(self) -> Client:
        """The client of the database."""
        return self._client

    def with_options(
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> Self:
        """Return the same database with other options."""
        options = self._options.having(codec_options, read_preference, write_concern, read_concern)
        return type(self)(self._client, self._name, options)

    def get_collection(
        self,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> Collection:
        """Return a collection, optionally with its own options."""
        options = self._options.having(codec_options, read_preference, write_concern, read_concern)
        return self._collection_class(self, name, options)

    def __getitem__(self, name: str) -> Collection:
        return self._collection_class(self, name, self._options)

    def __getattr__(self, name: str) -> Collection:
        if name.startswith("_"):
            raise _no_attribute(self, name, name)
        return self[name]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, DatabaseTarget):
            return self._client is other._client and self._name == other._name
        return NotImplemented

    def __hash__(self) -> int:
        return hash((id(self._client), self._name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._client!r}, {self._name!r})"


class CollectionTarget(NamedTarget, Generic[Database]):
    """What both kinds of collection share. Raises TypeError and InvalidName for a name as pymongo does."""

    def __init__(self, database: Database, name: str, options: TargetOptions) -> None:
        if not isinstance(name, str):
            raise TypeError(f"name must be an instance of str, not {type(name)}")
        _check_collection_name(name)
        super().__init__(database._api, options)
        self._database = database
        self._name = name
        self._scope = database.name, name

    @property
    def name(self) -> str:
        """The collection's name."""
        return self._name

    @property
    def full_name(self) -> str:
        """`database.collection`."""
        return f"{self._database.name}.{self._name}"

    @property
    def database(self) -> Database:
        """The database of the collection."""
        return self._database

    def with_options(
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> Self:
        """Return the same collection with other options."""
        options = self._options.having(codec_options, read_preference, write_concern, read_concern)
        return type(self)(self._database, self._name, options)

    def __getitem__(self, name: str) -> Self:
        return type(self)(self._database, f"{self._name}.{name}", self._options)

    def __getattr__(self, name: str) -> Self:
        if name.startswith("_"):
            raise _no_attribute(self, name, f"{self._name}.{name}")
        return self[name]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, CollectionTarget):
            return self._database == other._database and self._name == other._name
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self._database, self._name))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database!r}, {self._name!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Explain the error: calling a pymongo method that feedmux does not have reaches a collection of that name."""
        parent, _, method = self._name.rpartition(".")
        owner = type(self).__name__ if parent else type(self._database).__name__
        article = "a" if parent or not owner.startswith("A") else "an"
        raise TypeError(
            f"{type(self).__name__!r} object is not callable. If you meant to call the {method!r} method on {article}"
            f" {owner!r} object it is failing because no such method exists."
        )


class ClientTarget(WatchTarget, Generic[Database]):
    """The part of pymongo's client interface that feedmux clients have."""

    _database_class: type[Database]

    def get_database(
        self,
        name: str | None = None,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> Database:
        """Return a database, optionally with its own options. The name is required: no URI names a default database."""
        if name is None:
            raise ConfigurationError("No default database defined")
        options = self._options.having(codec_options, read_preference, write_concern, read_concern)
        return self._database_class(self, name, options)

    def __getitem__(self, name: str) -> Database:
        return self._database_class(self, name, self._options)

    def __getattr__(self, name: str) -> Database:
        if name.startswith("_"):
            raise _no_attribute(self, name, name)
        return self[name]


def _no_attribute(target: WatchTarget, name: str, path: str) -> AttributeError:
    """Return the error for a name with a leading underscore, which needs brackets. `path` is the name to put there."""
    kind, within = ("collection", "database") if isinstance(target, NamedTarget) else ("database", "client")
    return AttributeError(
        f"{type(target).__name__} has no attribute {name!r}. To access the {path} {kind}, use {within}[{path!r}]."
    )


def _check_database_name(name: str) -> None:
    if not name:
        raise InvalidName("database name cannot be the empty string")
    for character in (" ", ".", "$", "/", "\\", "\x00", '"'):
        if character in name:
            raise InvalidName(f"database names cannot contain the character {character!r}")


def _check_collection_name(name: str) -> None:
    if not name or ".." in name:
        raise InvalidName("collection names cannot be empty")
    if "$" in name and not name.startswith(("oplog.$main", "$cmd")):
        raise InvalidName(f"collection names must not contain '$': {name!r}")
    if name[0] == "." or name[-1] == ".":
        raise InvalidName(f"collection names must not start or end with '.': {name!r}")
    if "\x00" in name:
        raise InvalidName("collection names must not contain the null character")

"""What a client, a database and a collection have in pymongo besides `watch`: names and options; and a client's own.

Shared by the synchronous and the asynchronous classes, which say by type arguments which of them belong together.
pymongo's own code checks the options, so that errors have pymongo's messages.
"""

from collections.abc import Sequence
from typing import Any, Generic, NoReturn, Self, TypeVar

from bson.codec_options import CodecOptions
from pymongo import ReadPreference
from pymongo.common import BaseObject
from pymongo.errors import ConfigurationError, InvalidName
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import _ServerMode
from pymongo.write_concern import WriteConcern

from feedmux.api import Api, Settings
from feedmux.options import SessionOptions, check_duration
from feedmux.target import Target, Tls, Token

_TIMEOUT_MAX_S = 1e9
"""gRPC takes a longer timeout, such as infinity, for one that is over."""


class WatchTarget(BaseObject):
    """Something that can be watched, with pymongo's options. Its write concern has no effect."""

    _scope: tuple[str | None, str | None] = None, None
    """The names of the database and of the collection."""
    __iter__ = None  # Otherwise brackets would make an iterator.

    def __init__(
        self,
        api: Api,
        codec_options: CodecOptions[Any],
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> None:
        """Raises TypeError as pymongo does."""
        super().__init__(
            codec_options,
            read_preference or ReadPreference.PRIMARY,
            write_concern or WriteConcern(),
            read_concern or ReadConcern(),
        )
        self._api = api
        self._chosen_preference = read_preference
        """None: the server's source decides."""

    def _having(
        self,
        codec_options: CodecOptions[Any] | None,
        read_preference: _ServerMode | None,
        write_concern: WriteConcern | None,
        read_concern: ReadConcern | None,
    ) -> tuple[CodecOptions[Any], _ServerMode | None, WriteConcern, ReadConcern]:
        """Return the options with the given changes."""
        return (
            codec_options or self.codec_options,
            read_preference or self._chosen_preference,
            write_concern or self.write_concern,
            read_concern or self.read_concern,
        )


Client = TypeVar("Client", bound=WatchTarget)
Collection = TypeVar("Collection", bound="NamedTarget[Any]")
Parent = TypeVar("Parent", bound=WatchTarget)


class NamedTarget(WatchTarget, Generic[Parent]):
    """A database of a client, or a collection of a database."""

    def __init__(
        self,
        parent: Parent,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> None:
        """Raises TypeError and InvalidName as pymongo does."""
        if not isinstance(name, str):
            raise TypeError(f"name must be an instance of str, not {type(name)}")
        self._check_name(name)
        options = parent._having(codec_options, read_preference, write_concern, read_concern)
        super().__init__(parent._api, *options)
        self._parent = parent
        self._name = name
        database = parent._scope[0]
        self._scope = (name, None) if database is None else (database, name)

    def _check_name(self, name: str) -> None:
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name of the database or the collection."""
        return self._name

    def with_options(
        self,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> Self:
        """Return the same database or collection with other options."""
        options = self._having(codec_options, read_preference, write_concern, read_concern)
        return type(self)(self._parent, self._name, *options)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, NamedTarget):
            return self._parent == other._parent and self._name == other._name
        return NotImplemented

    def __hash__(self) -> int:
        return hash((self._parent, self._name))

    def __bool__(self) -> NoReturn:
        kind = "database" if self._scope[1] is None else "collection"
        raise NotImplementedError(
            f"{type(self).__name__} objects do not implement truth value testing or bool(). Please compare with None"
            f" instead: {kind} is not None"
        )

    def __call__(self, *_: object, **__: object) -> NoReturn:
        # A method of pymongo's that feedmux does not have is a database or a collection.
        name = self._name.rpartition(".")[2]
        raise TypeError(f"'{type(self).__name__}' object is not callable: feedmux watches, and has no method {name!r}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._parent!r}, {self._name!r})"


class DatabaseTarget(NamedTarget[Client], Generic[Client, Collection]):
    """What both kinds of database share."""

    _collection_class: type[Collection]

    def _check_name(self, name: str) -> None:
        if not name:
            raise InvalidName("database name cannot be the empty string")
        for character in () if name == "$external" else ' .$/\\\0"':
            if character in name:
                raise InvalidName(f"database names cannot contain the character {character!r}")

    @property
    def client(self) -> Client:
        """The client of the database."""
        return self._parent

    def get_collection(
        self,
        name: str,
        codec_options: CodecOptions[Any] | None = None,
        read_preference: _ServerMode | None = None,
        write_concern: WriteConcern | None = None,
        read_concern: ReadConcern | None = None,
    ) -> Collection:
        """Return a collection, optionally with its own options."""
        return self._collection_class(self, name, codec_options, read_preference, write_concern, read_concern)

    def __getitem__(self, name: str) -> Collection:
        return self._collection_class(self, name)

    def __getattr__(self, name: str) -> Collection:
        return self[_attribute(name)]


Database = TypeVar("Database", bound=DatabaseTarget[Any, Any])


class CollectionTarget(NamedTarget[Database]):
    """What both kinds of collection share."""

    def _check_name(self, name: str) -> None:
        if not name or ".." in name:
            raise InvalidName("collection names cannot be empty")
        if "$" in name and not name.startswith(("oplog.$main", "$cmd")):
            raise InvalidName(f"collection names must not contain '$': {name!r}")
        if name[0] == "." or name[-1] == ".":
            raise InvalidName(f"collection names must not start or end with '.': {name!r}")
        if "\0" in name:
            raise InvalidName("collection names must not contain the null character")

    @property
    def full_name(self) -> str:
        """`database.collection`."""
        return f"{self._parent.name}.{self._name}"

    @property
    def database(self) -> Database:
        """The database of the collection."""
        return self._parent

    def __getitem__(self, name: str) -> Self:
        return type(self)(self._parent, f"{self._name}.{name}", *self._having(None, None, None, None))

    def __getattr__(self, name: str) -> Self:
        return self[_attribute(name)]


class ClientTarget(WatchTarget, Generic[Database]):
    """The part of pymongo's client interface that feedmux clients have."""

    _database_class: type[Database]

    def __init__(
        self,
        target: str,
        *,
        api_key: str | None = None,
        token: Token | None = None,
        source: str = "main",
        tls: bool | Tls = False,
        timeout_s: float = 30.0,
        session: SessionOptions | None = None,
        codec_options: CodecOptions[Any] | None = None,
        channel_options: Sequence[tuple[str, int | str]] = (),
    ) -> None:
        """The class of the client describes the arguments. Raises ValueError or TypeError."""
        if api_key is not None and token is not None:
            raise ValueError("give api_key or token, not both")
        if not isinstance(tls, bool | Tls):
            raise TypeError(f"tls is True or a feedmux.Tls, not {type(tls).__name__}")
        if not isinstance(timeout_s, int | float):
            raise TypeError(f"timeout_s is a number, not {type(timeout_s).__name__}")
        check_duration(timeout_s, "timeout_s")
        secure = Tls() if tls is True else tls or None
        server = Target(target, api_key if api_key is not None else token, secure, tuple(channel_options))
        chosen = Settings(server, source, min(timeout_s, _TIMEOUT_MAX_S), session or SessionOptions())
        super().__init__(Api(chosen), codec_options or CodecOptions())

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
        return self._database_class(self, name, codec_options, read_preference, write_concern, read_concern)

    def __getitem__(self, name: str) -> Database:
        return self._database_class(self, name)

    def __getattr__(self, name: str) -> Database:
        return self[_attribute(name)]


def _attribute(name: str) -> str:
    """Return the name that an attribute stands for. Raises AttributeError for a private one, which needs brackets."""
    if name.startswith("_"):
        raise AttributeError(f"no attribute {name!r}; use brackets for a database or a collection of this name")
    return name

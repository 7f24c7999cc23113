"""The configured MongoDB deployments and Redis: connected and checked at the start, watched from then on.

This module stands between `config` and `app`. A dependency that is unavailable at the start is an error; with
`when_unavailable: wait` the server waits for it and serves the rest. An unsuitable one (a standalone mongod, a Redis
that evicts) is an error at any time.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from feedmux_server.cancellation import cancellable
from feedmux_server.clock import monotonic_s
from feedmux_server.config.errors import ConfigError
from feedmux_server.config.sections import DeadLettersSection, RedisSection, SourceSection
from feedmux_server.config.server import Config
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.core.readiness import ReadinessRules
from feedmux_server.jobs.readiness import Check, Readiness
from feedmux_server.login_files import LoginFiles, OnChange
from feedmux_server.rpc.health import REDIS, Health
from feedmux_server.source.checks import tls_files, unsuitable_option, why_unreadable
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.source.deployment import Source, SourceConfig
from feedmux_server.source.letters import LettersPlace
from feedmux_server.store.checks import RedisUnavailable, check_eviction, check_redis, check_writable
from feedmux_server.store.connection import Client, RedisAccess, connect
from feedmux_server.store.signing_keys import SigningKeys
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.observer import Observer

log = logging.getLogger(__name__)

DEAD_LETTERS: Final = "dead_letters"
SENTINELS: Final = f"{REDIS}/sentinels"
DAY_S: Final = 86_400
_DENIED_S: Final = 60.0
"""How long to wait after Redis has denied a command, because it logs every denied one: it may be allowed later."""


@dataclass(slots=True)
class Dependencies:
    sources: dict[str, Source]
    redis: Client
    redis_url: str
    key_prefix: str
    logins: dict[str, LoginFiles]
    """Of `redis`, its sentinels and each `source/NAME` whose login is in files."""
    reload_s: float
    stored_keys: SigningKeys | None
    """None if the keys of positions come from a file."""
    letters: DeadLetters | None = None
    """The collection for dead letters, if one is configured. Nothing waits for it."""
    redis_checked: bool = False
    policy_from_s: float = 0.0
    """When Redis's maxmemory-policy may be read again, after Redis has denied it."""
    there: dict[str, bool] = field(default_factory=dict)
    """Whether `redis` and each `source/NAME` was available at the start."""

    @classmethod
    async def connect(
        cls, config: Config, stack: AsyncExitStack, observer: Observer, position_keys: PositionKeys
    ) -> "Dependencies":
        """Connect to all dependencies. Fill `position_keys` from Redis unless a file has them.

        Raises FeedmuxError, StartupError, ConfigError.
        """
        wait = config.when_unavailable == "wait"
        redis_logins = redis_files(config.redis)
        redis = connect(config.redis.url, redis_access(config.redis, redis_logins))
        stack.push_async_callback(redis.aclose)
        prefix, has_file = config.redis.key_prefix, config.positions.key_file is not None
        stored_keys = None if has_file else SigningKeys(redis, position_keys, key_prefix=prefix)
        found = cls({}, redis, config.redis.url, prefix, {}, config.reload_s, stored_keys)
        found.logins |= {name: login for name, login in redis_logins.items() if login.has_files}
        for name, section in config.sources.items():
            login = mongodb_files(f"sources.{name}", section)
            chosen = SourceConfig(
                name,
                section.uri,
                login.username,
                login.password,
                section.id,
                section.server_selection_timeout_ms,
                history_reads=section.history_reads,
            )
            source = make_source(chosen, observer)
            stack.push_async_callback(source.close)
            found.sources[name] = source
            if login.has_files:
                found.logins[f"source/{name}"] = login
        if config.dead_letters is not None:
            found._add_letters(config.dead_letters, stack, observer)
        checks = found._checks()
        log.info("connecting to %s", ", ".join(checks))
        outcomes = await asyncio.gather(*(check() for check in checks.values()), return_exceptions=True)
        for name, outcome in zip(checks, outcomes, strict=True):
            found.there[name] = outcome is None
            if isinstance(outcome, BaseException):
                if not wait or not _is_unavailable(outcome):
                    raise outcome
                log.error("starting without %s, and waiting for it to become available: %s", name, outcome)
        return found

    def _add_letters(self, section: DeadLettersSection, stack: AsyncExitStack, observer: Observer) -> None:
        """Raises ConfigError."""
        login = mongodb_files(DEAD_LETTERS, section)
        self.letters = make_letters(section, login, self.sources, observer)
        if section.uri:
            stack.push_async_callback(self.letters.deployment.close)
        if login.has_files:
            self.logins[DEAD_LETTERS] = login

    def readiness(self, health: Health) -> Readiness:
        return Readiness(health, self._checks(), self.there, ReadinessRules())

    def start(self, tasks: Tasks) -> list[asyncio.Task[None]]:
        """Start the tasks that keep the logins up to date; to be cancelled at the end."""

        async def nothing() -> None:
            """Each new connection to Redis asks for the login."""

        work = list[asyncio.Task[None]]()
        for name, login in self.logins.items():
            changed: OnChange = nothing
            if name == DEAD_LETTERS:
                assert self.letters is not None
                changed = partial(_use_login, self.letters.deployment, login)
            elif name not in (REDIS, SENTINELS):
                changed = partial(_use_login, self.sources[name.removeprefix("source/")], login)
            work.append(tasks.keep_running("login", partial(login.run, self.reload_s, changed), of=name))
        return work

    def _checks(self) -> dict[str, Check]:
        return {
            **{f"source/{name}": partial(check_source, source) for name, source in self.sources.items()},
            REDIS: self._check_redis,
        }

    async def _check_redis(self) -> None:
        """Check Redis. Raises STATE_UNAVAILABLE, and StartupError if Redis is unsuitable."""
        if self.redis_checked:
            await check_writable(self.redis, key_prefix=self.key_prefix)
            if monotonic_s() >= self.policy_from_s and not await check_eviction(self.redis, self.redis_url):
                self.policy_from_s = monotonic_s() + _DENIED_S
            await self._refresh_keys()
            return
        try:
            for warning in await check_redis(self.redis, self.redis_url, key_prefix=self.key_prefix):
                log.warning(warning)
        except RedisUnavailable as error:
            raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, str(error)) from None
        await self._refresh_keys()
        self.redis_checked = True

    async def _refresh_keys(self) -> None:
        if self.stored_keys is not None:
            await self.stored_keys.refresh()


def _is_unavailable(error: BaseException) -> bool:
    unavailable = (ErrorReason.SOURCE_UNAVAILABLE, ErrorReason.STATE_UNAVAILABLE)
    return isinstance(error, FeedmuxError) and error.reason in unavailable


async def check_source(source: Source) -> None:
    """Check a source. Raises SOURCE_UNAVAILABLE; until the source was available once, also errors that name why it is
    unsuitable."""
    if source.connected:
        try:
            await source.clock.operation_time()
        except FeedmuxError as error:
            # A rejected password may be one that is being changed, which must not end the server.
            raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, error.message) from error
        return
    try:
        warnings = await cancellable(source.connect())
    except FeedmuxError as error:
        if error.reason is not ErrorReason.SOURCE_UNAUTHORIZED:
            raise
        # Nor may an account that does not exist yet end a server that waits, and with it the feeds of other sources.
        raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, error.message) from error
    for warning in warnings:
        log.warning(warning)


def make_source(config: SourceConfig, observer: Observer, option: str = "") -> Source:
    """Make a source. Raises ConfigError for an invalid URI, without quoting it, because it may hold a password.
    `option` is the option with the URI, if it is not that of a source."""
    option = option or f"sources.{config.name}.uri"
    if unsuitable := unsuitable_option(config.uri):
        raise ConfigError(f"{option}: {unsuitable}")
    try:
        return Source(config, observer)
    except Exception as error:  # noqa: BLE001 pymongo raises several kinds for a URI it cannot read
        raise ConfigError(
            f"{option} cannot be used as a MongoDB URI ({why_unreadable(error)}). Write"
            " mongodb://HOST:27017,HOST:27017/?replicaSet=NAME or mongodb+srv://HOST/, with user and password"
            " percent-encoded"
        ) from None


async def _use_login(source: Source, login: LoginFiles) -> None:
    source.logins.use(login.username, login.password)


def mongodb_files(name: str, section: SourceSection | DeadLettersSection) -> LoginFiles:
    """The files of the login of the section `name`. Raises ConfigError."""
    return LoginFiles(
        name,
        username_file=section.username_file,
        password_file=section.password_file,
        tls_files=tls_files(section.uri),
    )


def make_letters(
    section: DeadLettersSection, login: LoginFiles, sources: Mapping[str, Source], observer: Observer
) -> DeadLetters:
    """The collection for dead letters. Close its deployment if the section has a URI. Raises ConfigError."""
    place = LettersPlace(
        section.database,
        section.collection,
        section.keep_days * DAY_S,
        section.bytes_max,
        section.letters_max,
        section.quarantined_keys_max,
    )
    if not section.uri:
        return DeadLetters(sources[section.source], place, section.source, sources)
    chosen = SourceConfig(
        DEAD_LETTERS,
        section.uri,
        login.username,
        login.password,
        server_selection_timeout_ms=section.server_selection_timeout_ms,
    )
    return DeadLetters(make_source(chosen, observer, f"{DEAD_LETTERS}.uri"), place, section.source, sources)


def redis_files(section: RedisSection) -> Mapping[str, LoginFiles]:
    """The files of the logins of Redis and of its sentinels. Raises ConfigError."""
    return {
        REDIS: LoginFiles("redis", username_file=section.username_file, password_file=section.password_file),
        SENTINELS: LoginFiles(
            "redis",
            username_file=section.sentinel_username_file,
            password_file=section.sentinel_password_file,
            prefix="sentinel_",
        ),
    }


def redis_access(section: RedisSection, files: Mapping[str, LoginFiles]) -> RedisAccess:
    def login(name: str) -> Callable[[], tuple[str, str]] | None:
        read = files[name]
        return (lambda: (read.username, read.password)) if read.has_files else None

    return RedisAccess(
        section.username,
        section.password.get_secret_value(),
        section.sentinel_username,
        section.sentinel_password.get_secret_value(),
        section.ca_file,
        section.certificate_file,
        section.key_file,
        login=login(REDIS),
        sentinel_login=login(SENTINELS),
    )

"""MongoDB and Redis as they are configured: connected and judged at the start, watched from then on.

Between `config` and `app`. What is away at the start is an error, or with `when_away: wait` something that is waited
for while the rest is served; what is unfit (a standalone mongod, a Redis that evicts) is an error at any time.
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial

from feedmux_server.cancelling import cancellable
from feedmux_server.config import Config, ConfigError, RedisSection
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.position_keys import PositionKeys
from feedmux_server.core.readiness import ReadinessRules
from feedmux_server.rpc.health import REDIS, Health
from feedmux_server.rpc.readiness import Check, Readiness
from feedmux_server.source.mongo import Source, SourceConfig
from feedmux_server.state.connection import Client, RedisAccess, connect
from feedmux_server.state.examine import RedisAway, check_redis, check_writable
from feedmux_server.state.signing_keys import SigningKeys
from feedmux_server.telemetry.observer import Observer

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Dependencies:
    sources: dict[str, Source]
    redis: Client
    redis_url: str
    stored_keys: SigningKeys | None
    """None where they come from a file."""
    redis_checked: bool = False
    there: dict[str, bool] = field(default_factory=dict)
    """`redis` and `source/NAME`, as they were found at the start."""

    @classmethod
    async def connect(
        cls, config: Config, stack: AsyncExitStack, observer: Observer, position_keys: PositionKeys
    ) -> "Dependencies":
        """Raises FeedmuxError, StartupError, ConfigError. Fills `position_keys` from Redis where no file has them."""
        wait = config.when_away == "wait"
        redis = connect(config.redis.url, redis_access(config.redis))
        stack.push_async_callback(redis.aclose)
        stored_keys = SigningKeys(redis, position_keys) if config.positions.key_file is None else None
        found = cls({}, redis, config.redis.url, stored_keys)
        for name, section in config.sources.items():
            chosen = SourceConfig(
                name,
                section.uri,
                section.id,
                section.server_selection_timeout_ms,
                history_reads=section.history_reads,
            )
            source = make_source(chosen, observer)
            stack.push_async_callback(source.close)
            found.sources[name] = source
        checks = found._checks()
        outcomes = await asyncio.gather(*(check() for check in checks.values()), return_exceptions=True)
        for name, outcome in zip(checks, outcomes, strict=True):
            found.there[name] = outcome is None
            if isinstance(outcome, BaseException):
                if not wait or not _is_away(outcome):
                    raise outcome
                log.error("starting without %s, and waiting for it to become available: %s", name, outcome)
        return found

    def readiness(self, health: Health) -> Readiness:
        return Readiness(health, self._checks(), self.there, ReadinessRules())

    def _checks(self) -> dict[str, Check]:
        return {
            **{f"source/{name}": partial(check_source, source) for name, source in self.sources.items()},
            REDIS: self._check_redis,
        }

    async def _check_redis(self) -> None:
        """Raises STATE_UNAVAILABLE, and StartupError where it is unfit."""
        if self.redis_checked:
            await check_writable(self.redis)
            await self._refresh_keys()
            return
        try:
            for warning in await check_redis(self.redis, self.redis_url):
                log.warning(warning)
        except RedisAway as error:
            raise FeedmuxError(ErrorReason.STATE_UNAVAILABLE, str(error)) from None
        await self._refresh_keys()
        self.redis_checked = True

    async def _refresh_keys(self) -> None:
        if self.stored_keys is not None:
            await self.stored_keys.refresh()


def _is_away(error: BaseException) -> bool:
    away = (ErrorReason.SOURCE_UNAVAILABLE, ErrorReason.STATE_UNAVAILABLE)
    return isinstance(error, FeedmuxError) and error.reason in away


async def check_source(source: Source) -> None:
    """Raises SOURCE_UNAVAILABLE; until it has once been there, also what makes it unfit."""
    if source.connected:
        try:
            await source.operation_time()
        except FeedmuxError as error:
            # A password that is being changed is no reason to end.
            raise FeedmuxError(ErrorReason.SOURCE_UNAVAILABLE, error.message) from error
        return
    for warning in await cancellable(source.connect()):
        log.warning(warning)


def make_source(config: SourceConfig, observer: Observer) -> Source:
    """Raises ConfigError for a URI that cannot be read; without a word of it, because it holds a password."""
    try:
        return Source(config, observer)
    except Exception as error:  # noqa: BLE001 pymongo raises several kinds for a URI it cannot read
        raise ConfigError(
            f"sources.{config.name}.uri cannot be used as a MongoDB URI ({type(error).__name__}). Write"
            " mongodb://HOST:27017,HOST:27017/?replicaSet=NAME or mongodb+srv://HOST/, with user and password"
            " percent-encoded"
        ) from None


def redis_access(section: RedisSection) -> RedisAccess:
    return RedisAccess(
        section.username,
        section.password.get_secret_value(),
        section.sentinel_username,
        section.sentinel_password.get_secret_value(),
        section.ca_file,
        section.certificate_file,
        section.key_file,
    )

"""Checks the deployment that the server's configuration names: MongoDB, Redis, TLS files, tenants.

It changes nothing except one probe in Redis and one in the collection for dead letters, which it removes, and what
listing subscriptions always corrects: entries of subscriptions that are gone, and sizes. Each step has a time limit; a
step that fails does not stop the others.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from cryptography import x509

from feedmux_server.cancellation import cancellable
from feedmux_server.config.errors import ConfigError
from feedmux_server.config.load import load_tenants
from feedmux_server.config.sections import DeadLettersSection
from feedmux_server.config.server import Config
from feedmux_server.core.check_result import CheckResult, Level
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.bson_check import shorten_path
from feedmux_server.core.feeds.feed_check import check_parts
from feedmux_server.core.feeds.former_json import changed_conditions
from feedmux_server.core.positions.position import decode_position, inspect_position
from feedmux_server.core.positions.position_keys import PositionKeys
from feedmux_server.credentials import read_position_keys
from feedmux_server.dependencies import (
    DEAD_LETTERS,
    make_letters,
    make_source,
    mongodb_files,
    redis_access,
    redis_files,
)
from feedmux_server.rpc.auth import ANONYMOUS
from feedmux_server.rpc.convert import feed_parts, is_definition, served_content
from feedmux_server.source.checks import SourceExamination, unsuitable_option, why_unreadable
from feedmux_server.source.dead_letters import CHECK
from feedmux_server.source.deployment import Source, SourceConfig
from feedmux_server.store.checks import (
    RedisUnavailable,
    examine_clock,
    examine_redis,
    examine_sentinels,
    probe,
)
from feedmux_server.store.connection import Client, StartupError, connect
from feedmux_server.store.model import StoredSubscription
from feedmux_server.store.redis_url import parse_redis_url
from feedmux_server.store.replica_checks import examine_replicas
from feedmux_server.store.schema import check_layout
from feedmux_server.store.signing_keys import stored_position_keys
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.telemetry.observer import NOBODY
from feedmux_server.tls_files import load_tls

_EXPIRES_SOON_DAYS: Final = 21
_RENEW: Final = "Renew it; the server reads the new file by itself"
DAY_S: Final = 86_400
_PATHS_MAX: Final = 5
_IN_CONFIGURATION: Final = "Change it in the configuration; the server does not start with it"


@dataclass(frozen=True, slots=True)
class Step:
    """One check. If a `vital` step fails, the other steps of its `part` are skipped."""

    name: str
    run: Callable[[], Awaitable[list[CheckResult]]]
    part: str
    vital: bool = False


async def examine(
    config: Config, collections: Sequence[str], timeout_s: float, begins: Callable[[str], None] = lambda _: None
) -> AsyncIterator[CheckResult]:
    """Yield findings as they come. `begins` is called with the name of each step before the step. `collections` are
    [source:]database.collection, and their stored images are checked."""
    async with AsyncExitStack() as stack:
        given_up: set[str] = set()
        for step in _steps(config, collections, timeout_s, stack):
            if step.part in given_up:
                continue
            begins(step.name)
            found = await _within(step, timeout_s)
            if step.vital and any(each.level is Level.FAILED for each in found):
                given_up.add(step.part)
            for each in found:
                yield each


async def _within(step: Step, timeout_s: float) -> list[CheckResult]:
    try:
        async with asyncio.timeout(timeout_s):
            return await cancellable(step.run())
    except TimeoutError:
        return [
            CheckResult.failed(
                step.name,
                f"no answer within {timeout_s:g} s",
                "Check that it runs and is not overloaded, or allow more time with --timeout",
            )
        ]
    except (FeedmuxError, StartupError, ConfigError) as error:
        return [CheckResult.failed(step.name, str(error).rstrip("."), "Fix this, and run the command again")]
    except Exception as error:  # noqa: BLE001 one check must not keep the others from being made
        return [
            CheckResult(
                step.name, Level.UNKNOWN, f"it could not be checked ({type(error).__name__})", "Check its own log"
            )
        ]


def _steps(config: Config, collections: Sequence[str], timeout_s: float, stack: AsyncExitStack) -> list[Step]:
    steps = [Step("files", lambda: _files(config), "files")]
    named = [_source_and_namespace(each, config) for each in collections]
    for name in sorted({source for source, _ in named if source not in ("", *config.sources)}):
        says = f"--collection names the source {name!r}, which the configuration does not have"
        steps.append(_failed(name, "images", says, f"Name one of its sources: {', '.join(config.sources)}"))
    for name, section in config.sources.items():
        if unsuitable := unsuitable_option(section.uri):
            steps.append(_failed(name, "uri", f"sources.{name}.uri: {unsuitable}", _IN_CONFIGURATION))
        mine = [namespace for source, namespace in named if source in ("", name)]
        try:
            files = mongodb_files(f"sources.{name}", section)
            login = {key: value for key, value in (("username", files.username), ("password", files.password)) if value}
            examination = SourceExamination(name, section.uri, mine, timeout_ms=int(timeout_s * 500), login=login)
        except ConfigError as error:
            steps.append(_failed(name, "login", str(error), "Fix it in the configuration"))
            continue
        except Exception as error:  # noqa: BLE001 pymongo raises several kinds for a URI it cannot read
            says = f"sources.{name}.uri is not a valid MongoDB URI ({why_unreadable(error)})"
            advice = "Write mongodb://HOST:27017/?replicaSet=NAME, with user and password percent-encoded"
            steps.append(_failed(name, "uri", says, advice))
            continue
        stack.push_async_callback(examination.close)
        steps += [Step(each, run, name, vital=each.endswith(".reachable")) for each, run in examination.steps()]
    if config.dead_letters is not None:
        steps.append(Step(CHECK, partial(_letters, config, config.dead_letters, timeout_s), CHECK))
    try:
        redis = connect(config.redis.url, redis_access(config.redis, redis_files(config.redis)))
    except (StartupError, ConfigError) as error:
        return [*steps, _failed("redis", "url", str(error), "Fix it in the configuration (docs/redis.md)")]
    stack.push_async_callback(redis.aclose)
    return [*steps, *_redis_steps(redis, config, timeout_s)]


def _source_and_namespace(named: str, config: Config) -> tuple[str, str]:
    """The parts of [SOURCE:]DB.COLL; no source is named by what precedes a colon within a collection's name."""
    source, colon, namespace = named.partition(":")
    return (source, namespace) if colon and (source in config.sources or "." not in source) else ("", named)


async def _letters(config: Config, section: DeadLettersSection, timeout_s: float) -> list[CheckResult]:
    """Check whether dead letters can be written, and that no source watches them unnamed."""
    wait_ms = int(timeout_s * 500)
    async with AsyncExitStack() as stack:
        sources = dict[str, Source]()
        for name, each in config.sources.items():
            files = mongodb_files(f"sources.{name}", each)
            chosen = SourceConfig(name, each.uri, files.username, files.password, server_selection_timeout_ms=wait_ms)
            sources[name] = make_source(chosen, NOBODY)
            stack.push_async_callback(sources[name].close)
        section = section.model_copy(update={"server_selection_timeout_ms": wait_ms})
        letters = make_letters(section, mongodb_files(DEAD_LETTERS, section), sources, NOBODY)
        if section.uri:
            stack.push_async_callback(letters.deployment.close)
        # Which servers a source has is known once it has answered; the sources have checks of their own.
        await asyncio.gather(*(each.clock.operation_time() for each in sources.values()), return_exceptions=True)
        return await letters.examine()


def _redis_steps(redis: Client, config: Config, timeout_s: float) -> list[Step]:
    url, prefix = config.redis.url, config.redis.key_prefix

    async def reachable() -> list[CheckResult]:
        try:
            return await examine_redis(redis, url, timeout_s=timeout_s)
        except RedisUnavailable as error:
            advice = f"Check redis.url ({parse_redis_url(url)}), user, password and TLS in [redis], and that it runs"
            return [CheckResult.failed("redis.reachable", str(error).rstrip("."), advice)]

    async def layout() -> list[CheckResult]:
        await check_layout(redis, key_prefix=prefix, timeout_s=timeout_s, mark=False)
        return [CheckResult.ok("redis.layout", "the keys in Redis, if any, have the layout of this version")]

    return [
        Step("redis.reachable", reachable, "redis", vital=True),
        Step("redis.sentinels", lambda: examine_sentinels(redis), "redis"),
        Step(
            "redis.replicas",
            lambda: examine_replicas(redis, url, key_prefix=prefix, timeout_s=timeout_s),
            "redis",
        ),
        Step("redis.layout", layout, "redis"),
        Step("redis.write", lambda: _one(probe(redis, key_prefix=prefix, timeout_s=timeout_s)), "redis"),
        Step("redis.subscriptions", lambda: _subscriptions(redis, config, timeout_s), "redis"),
        Step("redis.clock", lambda: _one(examine_clock(redis)), "redis"),
    ]


async def _subscriptions(redis: Client, config: Config, timeout_s: float) -> list[CheckResult]:
    """Check whether each subscription can be opened, as far as Redis is concerned."""
    check, found, count = "redis.subscriptions", list[CheckResult](), 0
    prefix, file = config.redis.key_prefix, config.positions.key_file
    store = SubscriptionStore(
        redis, lease_s=config.redis.lease_s, key_prefix=prefix, timeout_s=timeout_s, readable=is_definition
    )
    stored_keys = () if file else await stored_position_keys(redis, key_prefix=prefix, timeout_s=timeout_s)
    keys = PositionKeys(read_position_keys(file) if file else stored_keys)
    known = load_tenants(config.tenants_file).tenants if config.tenants_file else []
    bounded = {each.name: each.pipelines == "bounded" for each in known} or {ANONYMOUS.tenant: False}
    for tenant in bounded:
        damaged: list[str] = []
        async for stored in store.every(tenant, damaged.append):
            count += 1
            try:
                position = inspect_position(stored.position)
                if keys.known:
                    decode_position(stored.position, position.scope_fingerprint, keys)
            except FeedmuxError as error:
                says = f"subscription {stored.name} of tenant {tenant} cannot be opened: {error.message}"
                advice = "Seek it to a time, or delete it and create it at a time (docs/operations.md)"
                found.append(CheckResult.failed(check, says, advice))
            found += _pipeline(check, tenant, stored, bounded=bounded[tenant])
        for name in damaged:
            key = store.key(tenant, name)
            says = f"Redis has lost or changed a part of subscription {name} of tenant {tenant} (key {key})"
            found.append(CheckResult.failed(check, says, "Restore its key, or create it again (docs/redis.md)"))
    return found or [CheckResult.ok(check, f"{count} subscriptions can be opened")]


def _pipeline(check: str, tenant: str, stored: StoredSubscription, *, bounded: bool) -> Iterator[CheckResult]:
    """Check whether the server knows all that is stored and accepts the pipeline, and whether that gives the same
    events as in earlier versions."""
    subscription = f"subscription {stored.name} of tenant {tenant}"
    try:
        feed = served_content(stored).feed
    except FeedmuxError as error:
        yield CheckResult.failed(check, f"{subscription} cannot be opened by this version", error.message)
        return
    try:
        check_parts(feed_parts(feed, bounded=bounded))
    except FeedmuxError as error:
        advice = "Correct its pipeline with feedmux subscriptions update (docs/pipelines.md)"
        yield CheckResult.failed(check, f"{subscription} cannot be opened: {error.message}", advice)
        return
    if paths := changed_conditions(feed.pipeline.extended_json or "[]"):
        changed = datetime.fromtimestamp(stored.update_ms / 1000, UTC).date()
        yield CheckResult.warning(
            check,
            f"{subscription}, last changed on {changed}: earlier versions read a part of its pipeline as a regular"
            f" expression: {', '.join(map(shorten_path, paths[:_PATHS_MAX]))}",
            "If this was before the upgrade, see docs/operations.md, Pipelines that earlier versions misread",
        )


def _failed(name: str, check: str, says: str, advice: str) -> Step:
    """What is known to be wrong before anything is asked."""

    async def tell() -> list[CheckResult]:
        return [CheckResult.failed(f"{name}.{check}", says, advice)]

    return Step(f"{name}.{check}", tell, name)


async def _one(finding: Awaitable[CheckResult]) -> list[CheckResult]:
    return [await finding]


async def _files(config: Config) -> list[CheckResult]:
    """Check the tenants file, the keys of positions and the certificates."""
    found: list[CheckResult] = []
    if config.positions.key_file is not None:
        count = len(read_position_keys(config.positions.key_file))
        found.append(CheckResult.ok("positions", f"keys of positions in {config.positions.key_file}: {count}"))
    if config.tenants_file is None:
        advice = "Name a tenants_file (docs/tenants.md); without one the server starts only with --insecure-no-auth"
        found.append(CheckResult.warning("tenants", "no tenants_file is configured", advice))
    else:
        count = len(load_tenants(config.tenants_file).tenants)
        found.append(CheckResult.ok("tenants", f"tenants in {config.tenants_file}: {count}"))
    if addresses := config.plaintext_addresses:
        advice = "Set tls.certificate_file and tls.key_file, or listen.accept_plaintext if a proxy or a mesh encrypts"
        says = f"keys cross the network in plaintext: {' and '.join(addresses)} does not use TLS"
        found.append(CheckResult.warning("tls", says, advice))
    elif config.tls is None and config.listen.accept_plaintext:
        found.append(CheckResult.ok("tls", "plaintext is accepted (listen.accept_plaintext)"))
    elif config.tls is None:
        advice = "Keep this only if a proxy terminates TLS or nobody else can listen on the network"
        found.append(CheckResult.warning("tls", "the data and operator ports do not use TLS", advice))
    else:
        load_tls(config.tls)
        found.append(_expiry("tls.certificate_file", config.tls.certificate_file))
        if config.tls.client_ca_file is not None:
            found.append(_expiry("tls.client_ca_file", config.tls.client_ca_file))
    return found


def _expiry(name: str, path: Path) -> CheckResult:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    left_days = (certificate.not_valid_after_utc.timestamp() - time.time()) / DAY_S
    names = ", ".join(_names(certificate)) or "no host name"
    if left_days < 0:
        return CheckResult.failed(name, f"the certificate in {path} has expired", _RENEW)
    if time.time() < certificate.not_valid_before_utc.timestamp():
        return CheckResult.failed(name, f"the certificate in {path} is not valid yet", "Check this machine's clock")
    says = f"the certificate in {path} is for {names} and valid for {left_days:.0f} days"
    if left_days < _EXPIRES_SOON_DAYS:
        return CheckResult.warning(name, says, _RENEW)
    return CheckResult.ok(name, says)


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        others = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return [*others.get_values_for_type(x509.DNSName), *map(str, others.get_values_for_type(x509.IPAddress))]

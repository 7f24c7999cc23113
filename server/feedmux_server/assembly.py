"""Builds a server without its ports: everything from MongoDB and Redis up to the service that the handlers serve.

`app` supplies connections, gRPC servers and signals. A simulation supplies models, and calls `rpc.handlers` itself.
"""

import asyncio
from dataclasses import dataclass
from functools import partial

from feedmux_server.clock import monotonic_s
from feedmux_server.config.sections import LimitsSection, WideSection
from feedmux_server.config.server import Config
from feedmux_server.core.delivery.credit import CreditLimits
from feedmux_server.core.delivery.feed_streams import StreamLimits
from feedmux_server.core.delivery.replay_buffer import RingLimits
from feedmux_server.core.delivery.stream_steps import RestLimits
from feedmux_server.core.delivery.wide_plan import WideLimits
from feedmux_server.core.limits.account import Accounts
from feedmux_server.credentials import Credentials
from feedmux_server.jobs.monitor_results import MonitorResults
from feedmux_server.jobs.oplog_monitor import OplogMonitor
from feedmux_server.jobs.position_monitor import PositionMonitor
from feedmux_server.jobs.subscription_expiry import sweep
from feedmux_server.jobs.timeline_monitor import watch_timeline
from feedmux_server.ranges.cache import RangeCache, RangeLimits
from feedmux_server.rpc.access import Access
from feedmux_server.rpc.admission import Admission
from feedmux_server.rpc.call_audit import CallAudit
from feedmux_server.rpc.convert import is_definition
from feedmux_server.rpc.lease_releases import LeaseReleases
from feedmux_server.rpc.live_sessions import LiveSessions
from feedmux_server.rpc.receiving import RequestLimits
from feedmux_server.rpc.service import Service, ServiceLimits
from feedmux_server.sessions.groups import Groups
from feedmux_server.source.dead_letters import DeadLetters
from feedmux_server.source.deployment import Source
from feedmux_server.source.read_limits import ReadLimits
from feedmux_server.store.committer import Committer
from feedmux_server.store.connection import Client
from feedmux_server.store.store import SubscriptionStore
from feedmux_server.store.timelines import StoredTimelines
from feedmux_server.streams.key_streams import ManagerLimits
from feedmux_server.streams.manager import StreamManager
from feedmux_server.streams.pump import PumpLimits
from feedmux_server.streams.wide.stream import WideStreamLimits
from feedmux_server.supervision import Tasks
from feedmux_server.telemetry.audit import AuditLog
from feedmux_server.telemetry.observer import Observer
from feedmux_server.workers.request_checks import RequestChecks
from feedmux_server.workers.side_process import SideProcess, SideProcesses


@dataclass(frozen=True, slots=True)
class Assembly:
    """The parts of a server, and their background tasks."""

    config: Config
    manager: StreamManager
    ranges: RangeCache
    checks: RequestChecks
    committer: Committer
    service: Service
    results: MonitorResults
    letters: DeadLetters | None = None

    def start(self, tasks: Tasks) -> list[asyncio.Task[None]]:
        """Start the background tasks, to be cancelled after the drain. None of them reads a stream."""
        limits, sources = self.config.limits, self.manager.sources
        return [
            tasks.keep_running("committer", self.committer.run),
            *OplogMonitor(sources.values(), self.service.sessions, self.results, limits.oplog_check_interval_s).start(
                tasks
            ),
            *(
                tasks.keep_running("timeline", partial(watch_timeline, each, limits.oplog_check_interval_s), of=name)
                for name, each in sources.items()
            ),
            *(tasks.keep_running("read-watch", each.read_watch.run, of=name) for name, each in sources.items()),
            tasks.keep_running(
                "stored-history", PositionMonitor(self.service, self.results, limits.position_check_interval_s).run
            ),
            tasks.keep_running("unused-subscriptions", partial(sweep, self.service)),
            *([tasks.keep_running("dead-letters", self.letters.run)] if self.letters is not None else ()),
        ]

    async def close(self) -> None:
        """End all reads and side processes. Call it only once no session is open any more."""
        self.ranges.close()
        self.manager.stop()
        await self.manager.renderers.close()
        await self.checks.close()


def assemble(
    config: Config,
    sources: dict[str, Source],
    redis: Client,
    credentials: Credentials,
    tasks: Tasks,
    observer: Observer,
    audit: AuditLog,
    stop: asyncio.Event,
    *,
    limits: ManagerLimits | None = None,
    side_processes: SideProcesses = SideProcess,
    letters: DeadLetters | None = None,
) -> Assembly:
    """Build the parts, without connecting or starting anything. `stop` is set when an operator asks for a drain.
    `limits` default to those of `config`, which enforces lower bounds for them."""
    store = SubscriptionStore(
        redis,
        lease_s=config.redis.lease_s,
        key_prefix=config.redis.key_prefix,
        observer=observer,
        readable=is_definition,
        control_replicas=None if config.redis.control_replicas == "auto" else config.redis.control_replicas,
    )
    committer = Committer(store.leases, interval_s=config.redis.commit_interval_s)
    accounts = Accounts(credentials.quotas_of, monotonic_s)
    limits = limits or manager_limits(config.limits, config.wide)
    for source in sources.values():
        source.timeline.store = StoredTimelines(redis, key_prefix=config.redis.key_prefix)
    manager = StreamManager(sources, limits, tasks, accounts, observer, side_processes)
    ranges = RangeCache(manager, RangeLimits(config.limits.retained_bytes))
    checks = RequestChecks(side_processes)
    manager.memory.include("checks", lambda: checks.held_bytes)
    admission = Admission(
        credentials.auth,
        credentials.operator_auth,
        accounts,
        manager.memory.requests,
        manager.memory.unsent,
        config.limits.sessions,
    )
    access = Access(
        manager,
        checks,
        admission,
        credentials.grants(),
        credentials.trusted(),
        letters.hidden_database if letters is not None else lambda scope: "",
    )
    manager.memory.include("policies", lambda: access.policies.bytes)
    service = Service(
        manager,
        store,
        committer,
        ranges,
        checks,
        credentials.position_keys,
        admission,
        access,
        LiveSessions(access, credentials.auth),
        Groups(),
        letters,
        LeaseReleases(),
        CallAudit(audit, credentials.auth, observer),
        ServiceLimits(
            RequestLimits(config.limits.request_bytes, config.limits.first_message_s),
            config.limits.drain_s,
            config.limits.connection_age_s,
            config.limits.unused_subscription_days,
        ),
        stop,
    )
    return Assembly(config, manager, ranges, checks, committer, service, MonitorResults.of_sources(sources), letters)


def manager_limits(limits: LimitsSection, wide: WideSection) -> ManagerLimits:
    return ManagerLimits(
        streams=StreamLimits(
            RingLimits(limits.ring_events, limits.ring_bytes),
            min(limits.read_ahead_bytes, limits.ring_bytes // 2),
            limits.join_distance_s,
        ),
        pump=PumpLimits(limits.coalesce_ms / 1000, RestLimits(limits.unused_stream_s, limits.idle_close_s)),
        read=ReadLimits(
            batch_events=limits.batch_events,
            max_await_ms=limits.max_await_ms,
            event_time_s=limits.event_time_s,
            snapshot_step_s=limits.snapshot_step_s,
        ),
        credit=CreditLimits(limits.credit_events, limits.credit_bytes),
        memory_bytes_max=limits.memory_bytes,
        catch_up_max=limits.catch_up_streams,
        unacked_events_max=limits.unacked_events,
        wide=WideLimits(wide.enabled, wide.feeds_min, wide.events_per_s_max),
        wide_stream=WideStreamLimits(RingLimits(limits.ring_events, wide.ring_bytes)),
        view_inbox_bytes=wide.inbox_bytes,
        history_at_risk_s=limits.history_at_risk_s,
    )

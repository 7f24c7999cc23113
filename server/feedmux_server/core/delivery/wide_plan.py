"""Which feeds are served as views of a wide stream, and why: counts and rates, with hysteresis.

Every change stream scans the whole oplog, whatever it watches. Many narrow feeds whose options agree can be served
from one stream of their database, or of the deployment: one scan, and each event once. This module
decides whether that costs less, for each group of feeds that could share a stream. The delivered events stay the same.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from feedmux_server.core.feeds.feed import SIMPLE_COLLATION, Scope
from feedmux_server.core.feeds.simple_filter import SimpleFilter, simple_filter_of
from feedmux_server.core.feeds.stream_key import StreamKey, stream_key

_REQUIRED: Final = "required"
_PAUSES_MAX: Final = 16
# Milliseconds of a core, measured on 6.0.
_READ_MS: Final = 0.35
"""What a read of a wide stream costs the server, in addition to its events."""
_EVENT_MS: Final = 0.0095
"""Cost of an event that no view wants."""
_CURSOR_MS: Final = 0.66
"""Cost of one second of a cursor without events, for the server."""
_SCAN_MS: Final = 0.007
"""Cost of an event that a cursor skips, for MongoDB."""
_CHEAP_MS: Final = 50.0
"""All wide streams together may cost this much per second, because they save cursors and connections."""


@dataclass(frozen=True, slots=True)
class WideLimits:
    """When narrow feeds become views."""

    enabled: bool = True
    feeds_min: int = 8
    """How many feeds of a group it takes to share a wide stream; with less than half of that, the stream is closed."""
    events_per_s_max: float = 20_000.0
    """Rate of all wide streams, in equal parts, because tenants choose the options that make groups. Above it, the
    server would inspect so many events that no view wants that separate scans cost MongoDB less; unless most events are
    for views, or so many cursors would cost the server more."""
    share_min: float = 0.5
    """If at least this part of the wide stream's events goes to views, its rate does not matter."""
    retry_s: float = 60.0
    """How long to wait before another wide stream is tried, after one was closed for its costs or an error. Each time
    that a stream is closed before it was found worth its costs, the wait doubles, up to 16 times this."""


class WideState(StrEnum):
    TOO_FEW = "too few feeds"
    SHARED = "shared"
    TOO_BUSY = "too many events of other namespaces"
    REJECTED = "MongoDB rejected the wide stream"
    DISABLED = "disabled"


def view_of(key: StreamKey) -> SimpleFilter | None:
    """What a feed admits of the changes to documents of its namespace in a wider stream with the same options: all, or
    those of some operation types or collections. None if the feed does more than that."""
    spec = key.spec
    if not spec.scope.database or (key.policy and not key.keeps_changes):
        return None
    if spec.comment or spec.extra_options or spec.collation not in (b"", SIMPLE_COLLATION):
        # They have any number of values, or many, so they could make many groups.
        return None
    if _REQUIRED in (spec.full_document, spec.full_document_before_change):
        return None
    return simple_filter_of(spec)


def group_of(key: StreamKey) -> StreamKey:
    """The common part of feeds that could share a wide stream: the key of the deployment's stream."""
    spec = key.spec
    collation = b"" if spec.collation == SIMPLE_COLLATION else spec.collation
    return stream_key(replace(spec, scope=Scope(spec.scope.source), pipeline=b"", collation=collation))


@dataclass(slots=True)
class _Group:
    feeds: Counter[StreamKey] = field(default_factory=Counter)
    databases: Counter[str] = field(default_factory=Counter)
    scope: Scope | None = None
    """The scope of the wide stream that is wanted now."""
    state: WideState = WideState.TOO_FEW
    not_before_s: float = 0.0
    given_up: int = 0
    """Consecutive times."""


class WidePlan:
    """The decisions of one process, by group."""

    def __init__(self, limits: WideLimits) -> None:
        self._limits = limits
        self._groups: dict[StreamKey, _Group] = {}

    def enter(self, key: StreamKey, now_s: float) -> None:
        """Note that a feed is read from now on."""
        group = self._groups.setdefault(group_of(key), _Group())
        group.feeds[key] += 1
        group.databases[key.spec.scope.database] += 1
        self._decide(group, now_s)

    def leave(self, key: StreamKey, now_s: float) -> None:
        """Note that a feed is not read any more."""
        name = group_of(key)
        group = self._groups[name]
        group.feeds -= Counter((key,))
        group.databases -= Counter((key.spec.scope.database,))
        self._decide(group, now_s)
        if not group.feeds:
            del self._groups[name]

    def has_feeds(self, name: StreamKey) -> bool:
        """Whether a feed of the group is read, so that a wide stream may be wanted again."""
        return name in self._groups

    def wanted(self, name: StreamKey, now_s: float) -> Scope | None:
        """The scope of the wide stream that the group is to be served from; None for streams of their own."""
        group = self._groups.get(name)
        if group is None:
            return None
        self._decide(group, now_s)
        return group.scope

    def measured(
        self, name: StreamKey, now_s: float, events_per_s: float, share: float, reads_per_s: float = 0.0
    ) -> None:
        """Record what the wide stream has read, in how many reads, and how many of the events went to views."""
        group = self._groups.get(name)
        if group is None:
            return
        if share < self._limits.share_min and self._costs_more(len(group.feeds), events_per_s, reads_per_s, 1 - share):
            self._give_up(group, WideState.TOO_BUSY, now_s)
        else:
            group.given_up = 0

    def _costs_more(self, feeds: int, events_per_s: float, reads_per_s: float, for_others: float) -> bool:
        """Whether a wide stream costs more than separate cursors. `for_others`: the part of its events that no view
        wants."""
        streams = max(1, sum(group.state is WideState.SHARED for group in self._groups.values()))
        events_ms = events_per_s * for_others * _EVENT_MS
        # The server's load alone may decide, because it has one core. Otherwise the costs of server and MongoDB are
        # compared: MongoDB scans few writes cheaply, but the server reads them one by one.
        is_busy = events_per_s > self._limits.events_per_s_max / streams and events_ms > feeds * _CURSOR_MS
        wide_ms = events_ms + reads_per_s * for_others * _READ_MS
        return is_busy or wide_ms > max(_CHEAP_MS / streams, feeds * (_CURSOR_MS + events_per_s * _SCAN_MS))

    def refused(self, name: StreamKey, now_s: float) -> None:
        """Note that MongoDB rejected the wide stream, or that the stream has an event that it cannot deliver."""
        group = self._groups.get(name)
        if group is not None:
            self._give_up(group, WideState.REJECTED, now_s)

    def state(self, name: StreamKey) -> WideState:
        """The decision and its reason."""
        group = self._groups.get(name)
        return group.state if group is not None else WideState.TOO_FEW

    def groups(self) -> Iterator[tuple[StreamKey, int]]:
        """All groups that are read, and how many feeds each has."""
        return ((name, len(group.feeds)) for name, group in self._groups.items())

    def _give_up(self, group: _Group, state: WideState, now_s: float) -> None:
        pause_s = self._limits.retry_s * min(_PAUSES_MAX, 2**group.given_up)
        group.scope, group.state, group.not_before_s = None, state, now_s + pause_s
        group.given_up += 1

    def _decide(self, group: _Group, now_s: float) -> None:
        limits, count = self._limits, len(group.feeds)
        if not limits.enabled:
            group.state = WideState.DISABLED
        elif now_s < group.not_before_s:
            group.scope = None
        elif group.scope is None and count < limits.feeds_min:
            group.state = WideState.TOO_FEW
        elif group.scope is not None and 2 * count < limits.feeds_min:
            group.scope, group.state = None, WideState.TOO_FEW
        else:
            group.scope, group.state = self._scope(group), WideState.SHARED

    def _scope(self, group: _Group) -> Scope:
        source = next(iter(group.feeds)).spec.scope.source
        wide = group.scope
        if len(group.databases) > 1 or (wide is not None and not wide.database):
            # A stream of the deployment is kept: feeds of a second database open and close.
            return Scope(source)
        (database,) = group.databases
        return Scope(source, database)

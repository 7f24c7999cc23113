"""Which feeds are served as views of a wide stream, and why: counts and rates, with hysteresis.

Every change stream scans the whole oplog, whatever it watches. Many narrow feeds whose options agree can be served
from one stream of their database, or of the deployment: one scan, and each event once. Whether that pays is decided
here, for each group of feeds that could share one; what is delivered is never changed by it.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from feedmux_server.core.feed import SIMPLE_COLLATION, Scope
from feedmux_server.core.narrowing import Narrowing, narrowing_of
from feedmux_server.core.stream_key import StreamKey, stream_key

_REQUIRED: Final = "required"
_EVENTS_FOR_A_CURSOR: Final = 70
"""A cursor without events costs the server as much in a second as so many events of others in a busy wide stream:
about 0.7 ms, beside 9.5 us for an event at 20,000 events/s."""


@dataclass(frozen=True, slots=True)
class WideLimits:
    """When narrow feeds become views."""

    enabled: bool = True
    feeds_min: int = 8
    """Feeds of a group from which on they share a wide stream; with less than half of that it is given up."""
    events_per_s_max: float = 20_000.0
    """Of the wide stream. Above it the server would look at more events of others than the scans cost MongoDB, unless
    most of them are for views, or there are so many feeds that cursors of their own would cost the server more."""
    share_min: float = 0.5
    """Part of the wide stream's events that goes to views, from which on its rate does not matter."""
    retry_s: float = 60.0
    """After a wide stream was given up for its rate or an error, the next one is tried no sooner."""


class WideState(StrEnum):
    TOO_FEW = "too few feeds"
    SHARED = "shared"
    TOO_BUSY = "too many events of other namespaces"
    REFUSED = "MongoDB refused the wide stream"
    OFF = "switched off"


def view_of(key: StreamKey) -> Narrowing | None:
    """What a feed admits of the changes to documents of its namespace in a wider stream with the same options: all, or
    those of some operation types or collections. None where that is not all there is to the feed."""
    spec = key.spec
    if not spec.scope.database or (key.policy and not key.keeps_changes):
        return None
    if _REQUIRED in (spec.full_document, spec.full_document_before_change):
        return None
    return narrowing_of(spec)


def group_of(key: StreamKey) -> StreamKey:
    """What feeds have in common that could share a wide stream: the key of the deployment's stream."""
    spec = key.spec
    collation = b"" if spec.collation == SIMPLE_COLLATION else spec.collation
    return stream_key(replace(spec, scope=Scope(spec.scope.source), pipeline=b"", collation=collation))


@dataclass(slots=True)
class _Group:
    feeds: Counter[StreamKey] = field(default_factory=Counter)
    databases: Counter[str] = field(default_factory=Counter)
    scope: Scope | None = None
    """Of the wide stream that is wanted now."""
    state: WideState = WideState.TOO_FEW
    not_before_s: float = 0.0


class WidePlan:
    """The decisions of one process, by group."""

    def __init__(self, limits: WideLimits) -> None:
        self._limits = limits
        self._groups: dict[StreamKey, _Group] = {}

    def enter(self, key: StreamKey, now_s: float) -> None:
        """A feed is read from now on."""
        group = self._groups.setdefault(group_of(key), _Group())
        group.feeds[key] += 1
        group.databases[key.spec.scope.database] += 1
        self._decide(group, now_s)

    def leave(self, key: StreamKey, now_s: float) -> None:
        """It is not any more."""
        name = group_of(key)
        group = self._groups[name]
        group.feeds -= Counter((key,))
        group.databases -= Counter((key.spec.scope.database,))
        self._decide(group, now_s)
        if not group.feeds:
            del self._groups[name]

    def wanted(self, name: StreamKey, now_s: float) -> Scope | None:
        """The scope of the wide stream that the group is to be served from; None for streams of their own."""
        group = self._groups.get(name)
        if group is None:
            return None
        self._decide(group, now_s)
        return group.scope

    def measured(self, name: StreamKey, now_s: float, events_per_s: float, share: float) -> None:
        """What the wide stream reads, and how much of it goes to views."""
        group = self._groups.get(name)
        limits = self._limits
        if group is None or share >= limits.share_min:
            return
        others_per_s = events_per_s * (1 - share)
        if events_per_s > limits.events_per_s_max and others_per_s > _EVENTS_FOR_A_CURSOR * len(group.feeds):
            self._give_up(group, WideState.TOO_BUSY, now_s)

    def refused(self, name: StreamKey, now_s: float) -> None:
        """MongoDB does not allow the wide stream, or it met an event that it could not deliver."""
        group = self._groups.get(name)
        if group is not None:
            self._give_up(group, WideState.REFUSED, now_s)

    def state(self, name: StreamKey) -> WideState:
        """What was decided, and why."""
        group = self._groups.get(name)
        return group.state if group is not None else WideState.TOO_FEW

    def groups(self) -> Iterator[tuple[StreamKey, int]]:
        """All groups that are read, and how many feeds each has."""
        return ((name, len(group.feeds)) for name, group in self._groups.items())

    def _give_up(self, group: _Group, state: WideState, now_s: float) -> None:
        group.scope, group.state, group.not_before_s = None, state, now_s + self._limits.retry_s

    def _decide(self, group: _Group, now_s: float) -> None:
        limits, count = self._limits, len(group.feeds)
        if not limits.enabled:
            group.state = WideState.OFF
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
            # Once wide it stays: feeds of a second database come and go.
            return Scope(source)
        (database,) = group.databases
        return Scope(source, database)

"""Which histories of the simulation the clients are led through: for each thing that may happen to a session the first
history in which it does."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from operator import gt
from typing import Final

import grpc

from feedmux.status import error_from_status
from feedmux.v1 import change_feed_pb2 as wire
from tests.conformance.clients.session_model import SessionModel, events_of
from tests.sim.histories import Acks, Closes, Ends, Fails, History, IsTold, Opens, Receives, Sends, Takes, record
from tests.sim.network import Status

_EAGER: Final = "more credit than was due"
"""A server sent what it may not send to a client that grants as late as the protocol allows."""
SEEDS_MAX: Final = 150
"""How many runs of a scenario are searched for a history."""
STEPS_MAX: Final = 250
BYTES_MAX: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """A history in which all of this happens."""

    features: frozenset[str]
    scenario: str = ""
    """Of `tests.sim.faults`."""
    first: int = 0
    """The first seed to search. A change of the simulation may move the history to a later one."""

    def is_met_by(self, history: History) -> bool:
        if len(history.steps) > STEPS_MAX or not self.features <= (found := features(history)) or _EAGER in found:
            return False
        return sum(len(step.message) for step in history.steps if isinstance(step, Receives)) <= BYTES_MAX


def _wanted(*names: str, scenario: str = "", first: int = 0) -> Wanted:
    return Wanted(frozenset(names), scenario, first)


WANTED: Final = {
    "repeats": _wanted("repeats", "acked after repeats", "ended by UNAVAILABLE", scenario="position keys rotate"),
    "acked-within-a-message": _wanted("acked within a message", "opened again", scenario="takeover"),
    "acked-up-to-progress": _wanted("acked up to progress", "opened again", scenario="late commands"),
    "unacked-limit": _wanted("all that may be unacked", "acked after repeats", scenario="late commands"),
    "credit-used-up": _wanted("all credit used", "opened again", scenario="late commands"),
    "paused-when-opened": _wanted("opened without credit", "opened again", scenario="seek", first=63),
    "feed": _wanted("feed again", "opened again", "events together", scenario="late commands"),
    "feed-of-texts": _wanted(
        "feed again", "opened again", "extended_json_canonical", scenario="position keys rotate", first=10
    ),
    "relaxed-texts": _wanted("repeats", "extended_json_relaxed", "events together", scenario="late commands", first=52),
    "fragments": _wanted("event_fragment", "bson", "subscription", scenario="short of memory", first=3),
    "fragments-of-texts": _wanted("fragments of texts", scenario="short of memory", first=7),
    "split-events": _wanted("split events", "opened again", scenario="takeover"),
    "taken-over": _wanted("failed Fenced TAKEOVER", "subscription again", scenario="takeover"),
    "takes-over": _wanted("opened with takeover", "opened again without takeover", scenario="takeover"),
    "sought": _wanted("ended by FENCED SEEK", "opened again", "forgotten", scenario="seek"),
    "rewound": _wanted("told Rewound", scenario="seek"),
    "skipped": _wanted("told Skipped", scenario="seek", first=97),
    "drained": _wanted("told Draining", "ended by DRAINING", "opened again", scenario="an operator"),
    "ended-by-an-operator": _wanted("failed EndedByOperator", "taken", scenario="an operator"),
    "granted-again": _wanted("ended by GRANTS_CHANGED", "repeats and news together", scenario="grants change", first=9),
    "degraded": _wanted("told Degraded", "opened again", scenario="late commands"),
    "at-risk-and-lost": _wanted("told Gap", "told HistoryAtRisk", scenario="history lost"),
    "invalidated": _wanted("failed FeedInvalidated", "taken"),
    "history-lost": _wanted("failed HistoryLost", "taken", scenario="history lost"),
    "lease-lost": _wanted(
        "ended by FENCED LEASE", "opened again", "acked after repeats", scenario="late takeover", first=35
    ),
    "not-stored": _wanted("ended by STATE_UNAVAILABLE", "opened again", scenario="Redis unavailable at a drain"),
    "busy": _wanted("failed SubscriptionBusy", scenario="takeover"),
    "pipeline-failed": _wanted("failed FailedPrecondition", "taken", scenario="slow pipelines"),
    "deleted": _wanted("failed SubscriptionNotFound DELETE", "taken", scenario="subscription deleted"),
}
"""By name. No name contains that of a client, so that `-k` selects one or the other."""


def select() -> dict[str, History]:
    """For each wanted the first history that has it and is not another's. Raises LookupError where there is none."""
    found: dict[str, History] = {}
    names: set[str] = set()
    for name, wanted in WANTED.items():
        runs = (_recorded(seed, wanted.scenario) for seed in range(wanted.first, wanted.first + SEEDS_MAX))
        candidates = (each for run in runs for each in run if each.name not in names)
        selected = next(filter(wanted.is_met_by, candidates), None)
        if selected is None:
            where = wanted.scenario or "no scenario"
            raise LookupError(f"{name}: {SEEDS_MAX} seeds of {where!r} have no session with {sorted(wanted.features)}")
        found[name] = selected
        names.add(selected.name)
    return found


@cache
def _recorded(seed: int, scenario: str) -> list[History]:
    return record(seed, scenario)


def features(history: History) -> set[str]:
    """What happens in it, in words. Raises AssertionError where the recorded client breaks the model's rules."""
    return set(_features(history))


def _features(history: History) -> Iterator[str]:
    model = SessionModel(history.options.window_events, history.options.window_bytes)
    yield history.options.format
    opens = granted = 0
    from_progress: set[bytes] = set()
    for step in history.steps:
        stream = model.stream
        match step:
            case Opens(request):
                yield from _features_of_open(request, opens, from_progress)
                opens, granted = opens + 1, request.credit.events
                model.opens(request)
            case Receives(message):
                response = wire.SubscribeResponse.FromString(message)
                repeats = stream.repeats
                if any(map(gt, stream.needs(message), model.least_credit)):
                    yield _EAGER
                model.receives(message)
                kind = response.WhichOneof("message")
                yield str(kind)
                if kind == "event_fragment" and history.options.format != "bson":
                    yield "fragments of texts"
                if kind == "opened" and opens > 1:
                    yield "opened again"
                elif kind == "progress":
                    from_progress.add(response.progress.position)
                elif kind == "batch":
                    new = response.batch.event_count - (stream.repeats - repeats)
                    yield from ("repeats",) if stream.repeats > repeats else ()
                    yield from ("repeats and news together",) if new and stream.repeats > repeats else ()
                    yield from ("events together",) if response.batch.event_count > 2 else ()
                    yield from ("split events",) if any(b"splitEvent" in each for each in events_of(response)) else ()
                if stream.opened.limits.credit_events_max > granted == len(stream.ids) > 0:
                    yield "all credit used"
                unacked_max = stream.opened.limits.unacked_events_max
                if stream.open.subscription and unacked_max and len(stream.ids) - model.acked_sequence >= unacked_max:
                    yield "all that may be unacked"
            case Sends(request):
                granted += request.credit.events
                if request.HasField("ack") and stream.repeats:
                    yield "acked after repeats"
            case Takes(events):
                model.takes(events)
                yield "taken"
            case Acks(number):
                model.acks(number)
            case IsTold(notice):
                yield f"told {type(notice).__name__}"
            case Ends(status):
                yield from _features_of_end(status, model)
            case Closes():
                yield "closed"
            case Fails(error):
                yield f"failed {type(error).__name__} {error.metadata.get('cause', '')}".rstrip()


def _features_of_open(request: wire.Open, before: int, from_progress: set[bytes]) -> Iterator[str]:
    again = " again" if before else ""
    yield f"opened{again} with takeover" if request.takeover else f"opened{again} without takeover"
    yield ("subscription" if request.subscription else "feed") + again
    if before and not (request.credit.events and request.credit.bytes):
        yield "opened without credit"
    if request.last_acked.WhichOneof("place") == "resume_token":
        yield "acked within a message"
    if request.last_acked.position in from_progress:
        yield "acked up to progress"


def _features_of_end(status: Status, model: SessionModel) -> Iterator[str]:
    code, details, trailing = status
    if code is grpc.StatusCode.OK:
        return
    error = error_from_status(code, details, trailing)
    cause = f" {error.metadata['cause']}" if "cause" in error.metadata else ""
    yield f"ended by {error.reason or code.name}{cause}"
    yield from ("waiting at the end",) if model.waiting[0] else ()
    yield from ("cut between fragments",) if model.stream.fragment else ()
    if cause == " SEEK":
        yield from ("forgotten",) if model.waiting[0] else ()
        model.forget()

"""One checker per guarantee that a recorded history can prove or refute; the names are those of the design.

Each checker is a function from a `History` to the violations that it found. A history cannot show these guarantees, so
no checker judges them: Authorised, Durable only, Isolated.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from tests.sim.group_checkers import GROUP_CHECKERS
from tests.sim.history import History, Violation, is_lost, token
from tests.sim.records import (
    GAP,
    Acked,
    Committed,
    Delivered,
    Ended,
    Granted,
    Handled,
    Held,
    Holds,
    Joined,
    Kept,
    Lost,
    Opened,
    Progress,
    Record,
    Renewed,
    Restored,
    SetAside,
    Skipped,
    Sought,
    Started,
)

Checker = Callable[[History], Iterator[Violation]]


def ordered(history: History) -> Iterator[Violation]:
    """A subscription delivers events in the source's order, never backwards within a session."""
    for session in history.judged():
        before = -1
        for event in session.delivered():
            rank = history.order.get(event)
            if rank is None:
                yield Violation("Ordered", session.name, f"{event} was never written")
            elif rank < before:
                yield Violation("Ordered", session.name, f"{event} came after {history.written[before].event}")
            else:
                before = rank


def complete(history: History) -> Iterator[Violation]:
    """If a session delivers a and later c, it delivered every matching b between them."""
    for session in history.judged():
        ranks = {history.order[event] for event in session.delivered() if event in history.order}
        if not ranks:
            continue
        first, last = min(ranks), max(ranks)
        missing = [
            history.written[rank].event
            for rank in history.ranks_for(session)
            if first < rank < last and rank not in ranks
        ]
        if missing:
            yield Violation("Complete", session.name, f"{len(missing)} events are missing, the first is {missing[0]}")


def unique(history: History) -> Iterator[Violation]:
    """A session delivers no event twice, and counts deliveries from 1 without gaps."""
    for session in history.judged():
        seen: set[str] = set()
        for event in session.delivered():
            if event in seen:
                yield Violation("Unique", session.name, f"{event} came twice")
            seen.add(event)
        sequence = 1
        for record in session.records:
            if isinstance(record, Delivered):
                if record.first_sequence != sequence:
                    yield Violation("Unique", session.name, f"sequence {record.first_sequence} instead of {sequence}")
                sequence = record.first_sequence + len(record.events)


def at_least_once(history: History) -> Iterator[Violation]:
    """Across sessions, only events after the stored position are repeated, and none is left out; a rewind is
    announced."""
    stored: dict[str, str] = {}
    acked: dict[str, set[str]] = {}
    first_rank: dict[str, int] = {}
    subscription_of: dict[str, str] = {}
    sought: dict[str, Sought] = {}
    feed_of: dict[str, str] = {}
    sent: dict[str, list[str]] = {}
    restores: list[Restored] = []
    unjudged: dict[str, str] = {}
    """By subscription: the session whose acks also cover events handed out before it, under other grants."""
    late: dict[str, Violation] = {}
    """By session: that it began too late. It may still begin further back by a gap, before its first event: what an
    earlier session has got after that gap was not stored when its server was lost."""
    for record in history.records:
        match record:
            case Restored():
                restores.append(record)
            case Committed() | Sought() | Lost():
                stored[record.subscription] = record.place
                sought.pop(record.subscription, None)
                if isinstance(record, Sought):
                    first_rank.pop(record.subscription, None)
                    if not record.created:
                        sought[record.subscription] = record
            case Opened():
                name = record.subscription
                subscription_of[record.session], sent[record.session] = name, []
                if feed_of.setdefault(name, record.feed) != record.feed:
                    feed_of[name] = record.feed  # other grants: events passed before may be visible now
                    first_rank.pop(name, None)
                wanted = sought.get(name)
                if wanted is not None and 0 < record.epoch < wanted.epoch:
                    continue  # the session was opened before the seek, and is fenced by now
                if wanted is not None and record.epoch > wanted.epoch > 0 and sought.pop(name).place != record.place:
                    yield Violation(
                        "At least once",
                        record.session,
                        f"began {history.described(record.place)}, not {history.described(wanted.place)} as sought",
                    )
                if not record.judged:
                    unjudged[name] = record.session
                begin = history.rank_after(record.place)
                if begin is None:
                    continue
                if name in unjudged:
                    first_rank[name] = begin
                start = first_rank.setdefault(name, begin)
                durable = history.rank_after(stored.get(name, ""))
                if durable and any(is_lost(stored[name], each) for each in restores):
                    durable = None
                if durable is not None and begin < durable and not record.rewound:
                    yield Violation(
                        "At least once", record.session, "began before the stored position, without a notice"
                    )
                done = acked.get(name, set())
                for rank in history.ranks(record.feed):
                    if start <= rank < begin and history.written[rank].event not in done:
                        if any(is_lost(history.written[rank].place, each) for each in restores):
                            continue
                        event = history.written[rank].event
                        why = f"began after {event}, which was never acked"
                        late[record.session] = Violation("At least once", record.session, why)
                        break
                first_rank[name] = min(start, begin)
            case Delivered():
                sent[record.session].extend(record.events)
                if record.session in late:
                    yield late.pop(record.session)
            case Handled(result="done") | SetAside():
                acked.setdefault(record.group, set()).add(record.event)  # the subscription was a group then
            case Ended():
                name = subscription_of[record.session]
                if record.reason == GAP:
                    late.pop(record.session, None)
                    first_rank.pop(name, None)
                    stored.pop(name, None)  # after a restore, the session begins further back
                if unjudged.get(name) == record.session:
                    del unjudged[name]
            case Acked():
                done = acked.setdefault(subscription_of[record.session], set())
                done.update(sent[record.session][: record.sequence])
            case _:
                pass
    yield from late.values()


def resumable_or_loud(history: History) -> Iterator[Violation]:
    """A session begins with the first event after its position, or ends with an error; it never skips events
    silently."""
    for session in history.judged():
        expected = history.expected(session)
        if expected is None:
            continue
        events = [event for event in session.delivered() if event in history.order]
        if session.opened.unknown_place:
            places = {record.place for record in session.records if isinstance(record, Progress)}
            if not places - {session.opened.place}:
                if events or (session.settled and expected):
                    yield Violation(
                        "Resumable or loud", session.name, "continued from a position that MongoDB does not know"
                    )
                continue
            # MongoDB's postBatchResumeToken replaced the position before an event came: there was nothing to skip.
        if events and (not expected or history.order[events[0]] != expected[0]):
            wanted = history.written[expected[0]].event if expected else "nothing"
            yield Violation("Resumable or loud", session.name, f"began with {events[0]} instead of {wanted}")
        invalidates = [event for event in events if history.written[history.order[event]].invalidate]
        if session.opened.stops_at_invalidate:
            if invalidates and events[-1] != invalidates[0]:
                yield Violation("Resumable or loud", session.name, f"continued after the invalidate {invalidates[0]}")
            if session.settled and invalidates:
                yield Violation("Resumable or loud", session.name, "was not notified that its feed was invalidated")
            if session.end is not None and session.end.reason == "FEED_INVALIDATED" and not invalidates:
                yield Violation("Resumable or loud", session.name, "ended by an invalidate that it did not receive")


def bookmarkable(history: History) -> Iterator[Violation]:
    """After Progress, or a batch's position, at P, nothing at or before P comes later, and nothing up to P is
    missing."""
    for session in history.judged():
        expected = history.expected(session)
        passed = 0
        count = 0
        for record in session.records:
            if isinstance(record, Delivered):
                for event in record.events:
                    if history.order.get(event, passed) < passed:
                        yield Violation("Bookmarkable", session.name, f"{event} came after a position that is after it")
                count += len(record.events)
            if isinstance(record, Delivered | Progress):
                rank = history.rank_after(record.place)
                if rank is None:
                    continue
                if rank < passed:
                    yield Violation(
                        "Bookmarkable",
                        session.name,
                        f"position {history.described(record.place)} is before an earlier one",
                    )
                passed = max(passed, rank)
                if expected is not None and count < len(expected) and expected[count] < rank:
                    event = history.written[expected[count]].event
                    yield Violation(
                        "Bookmarkable", session.name, f"a position is after {event}, which was not delivered"
                    )


def whole(history: History) -> Iterator[Violation]:
    """Fragments of one event, and the events of one transaction, keep their order and are never interleaved."""
    for session in history.judged():
        closed: set[str] = set()
        unit, before = "", -1
        for event in session.delivered():
            rank = history.order.get(event)
            if rank is None:
                continue
            mine = history.written[rank].unit
            if mine != unit:
                if unit:
                    closed.add(unit)
                if mine in closed:
                    yield Violation("Whole", session.name, f"{event} of {mine} came separately from the others")
            elif mine and rank < before:
                yield Violation("Whole", session.name, f"{event} of {mine} came out of order")
            unit, before = mine, rank


def bounded(history: History) -> Iterator[Violation]:
    """Events and bytes never exceed the granted credit, unacked events their cap, or memory its configuration."""
    for session in history.judged():
        events = size = sent = acked = 0
        granted = False
        for record in session.records:
            match record:
                case Granted():
                    granted = True
                    events, size = events + record.events, size + record.bytes
                case Delivered():
                    for index in range(len(record.events)):
                        if granted and size <= 0 and record.sizes:
                            yield Violation("Bounded", session.name, "an event came without credit in bytes")
                            break
                        size -= record.sizes[index] if record.sizes else 0
                    events -= len(record.events)
                    sent += len(record.events)
                    if granted and events < 0:
                        yield Violation("Bounded", session.name, f"{-events} events more than the credit")
                    if session.opened.unacked_max and sent - acked > session.opened.unacked_max:
                        yield Violation("Bounded", session.name, f"{sent - acked} events are unacknowledged")
                case Acked():
                    acked = max(acked, record.sequence)
                case _:
                    pass
    for each in history.records:
        if isinstance(each, Held) and each.amount > each.amount_max:
            yield Violation("Bounded", each.name, f"{each.amount} held, {each.amount_max} allowed")


def monotone_commit(history: History) -> Iterator[Violation]:
    """The stored position only moves forward, except by a seek, or when the source was restored."""
    stored: dict[str, str] = {}
    restored: set[str] = set()
    """Subscriptions that may be moved back once, because the source was restored."""
    for record in history.records:
        if isinstance(record, Restored):
            restored.update(stored)
        elif isinstance(record, Committed):
            before = stored.get(record.subscription)
            if not before or not record.place or not token(before).is_after(token(record.place)):
                pass
            elif record.subscription in restored:
                restored.remove(record.subscription)
            else:
                yield Violation(
                    "Monotone commit",
                    record.subscription,
                    f"{history.described(record.place)}, and {history.described(before)} before",
                )
            stored[record.subscription] = record.place
        elif isinstance(record, Sought):
            stored[record.subscription] = record.place
        elif isinstance(record, Lost):
            # A seek can be among what was lost; the session after the seek then stores its position again.
            before = stored.get(record.subscription)
            if not before or not record.place or token(before).is_after(token(record.place)):
                stored[record.subscription] = record.place


def fenced(history: History) -> Iterator[Violation]:
    """At most one epoch can commit: the newest that was opened, and no epoch from before a seek."""
    newest: dict[str, int] = {}
    ended: dict[str, int] = {}
    opened: set[tuple[str, int]] = set()
    for record in history.records:
        if isinstance(record, Opened) and record.epoch:
            # Clients may learn of their sessions in another order than the order in which the sessions were opened.
            if (record.subscription, record.epoch) in opened:
                yield Violation("Fenced", record.session, f"epoch {record.epoch} was handed out before")
            opened.add((record.subscription, record.epoch))
            newest[record.subscription] = max(record.epoch, newest.get(record.subscription, 0))
        elif isinstance(record, Sought):
            ended[record.subscription] = record.epoch
        elif isinstance(record, Lost):
            # What was not stored again in time is forgotten, including newer owners.
            newest.pop(record.subscription, None)
            ended.pop(record.subscription, None)
        elif isinstance(record, Committed) and record.epoch:
            name, epoch = record.subscription, record.epoch
            if epoch < newest.get(name, 0) or epoch <= ended.get(name, 0):
                yield Violation("Fenced", name, f"a commit of epoch {epoch} was accepted")


def convergent(history: History) -> Iterator[Violation]:
    """When faults stop, every session catches up."""
    for session in history.judged():
        expected = history.expected(session)
        if not session.settled or expected is None or session.opened.unknown_place:
            continue
        seen = {history.order[event] for event in session.delivered() if event in history.order}
        missing = [rank for rank in expected if rank not in seen]
        if missing:
            first = history.written[missing[0]].event
            yield Violation(
                "Convergent", session.name, f"{len(missing)} events were never delivered, the first is {first}"
            )


def one_history(history: History) -> Iterator[Violation]:
    """After a restore, whoever has passed something of the lost history gets nothing of the present one: the session
    ends, or continues after a gap. So does the next session of a subscription, acknowledged or not."""
    yield from _one_history_of_subscriptions(history)
    for session in history.sessions.values() if history.restores else ():
        passed: dict[int, str] = {}
        """By restore: what the session has passed of the lost history."""
        handed: list[str] = []
        for record in (session.opened, *session.records):
            if isinstance(record, Acked):
                seen = [(event, _place_of(history, event)) for event in handed[: record.sequence]]
            elif isinstance(record, Delivered):
                handed += record.events
                seen = [(event, _place_of(history, event)) for event in record.events]
                seen += [("a position", record.place)]
            elif isinstance(record, Opened | Progress):
                seen = [("a position", record.place)]
            else:
                continue
            for what, place in seen:
                for number, each in enumerate(history.restores) if place else ():
                    if is_lost(place, each):
                        # What was not acked may come again, or never.
                        if not session.opened.reconnects or isinstance(record, Acked):
                            passed.setdefault(number, what)
                    elif number in passed and token(place).cluster_time >= each.until:
                        yield Violation(
                            "One history", session.name, f"{what} came after {passed[number]}, which was lost"
                        )
                        del passed[number]


def _one_history_of_subscriptions(history: History) -> Iterator[Violation]:
    """Servers must know what a session, or the host of a group, had delivered before its last write to Redis but one;
    at its end, everything. Of a group, they also know what is stored as settled ahead."""
    lease_of: dict[str, tuple[str, int]] = {}
    before: dict[tuple[str, int], list[str]] = {}
    """By lease: the places of the events that were delivered before its last write."""
    since: dict[tuple[str, int], list[str]] = {}
    known: dict[str, list[str]] = {}
    """By subscription: the places that servers must know, since the last seek or gap."""
    letters = set[str]()
    for record in history.records if history.restores else ():
        if isinstance(record, Opened) and record.epoch:
            lease_of[record.session] = record.subscription, record.epoch
        elif isinstance(record, Renewed):
            lease = record.subscription, record.epoch
            known.setdefault(record.subscription, []).extend(before.pop(lease, []))
            before[lease] = since.pop(lease, [])
            if record.is_last:
                known[record.subscription] += before.pop(lease)
        elif isinstance(record, Sought | Lost):
            known.pop(record.subscription, None)
        elif isinstance(record, Skipped):  # by a gap
            known.pop(record.group, None)
            for lease in [lease for lease in {**before, **since} if lease[0] == record.group]:
                before.pop(lease, None)
                since.pop(lease, None)
        elif isinstance(record, Ended) and record.reason == GAP and record.session in lease_of:
            lease = lease_of[f"{record.session}+"] = lease_of[record.session]
            for places in (known.pop(lease[0], []), before.pop(lease, []), since.pop(lease, [])):
                places.clear()
        elif isinstance(record, Joined):
            lease_of[record.member] = record.group, record.epoch
        elif isinstance(record, Kept):
            known.setdefault(record.group, []).append(record.high or record.place)
        elif isinstance(record, SetAside):
            letters.add(record.event)
        elif isinstance(record, Delivered | Started) and (by := _receiver(record)) in lease_of:
            lease = lease_of[by]
            events = record.events if isinstance(record, Delivered) else {record.event} - letters
            places = [place for event in events if (place := _place_of(history, event))]
            since.setdefault(lease, []).extend(places)
            for each in history.restores:
                lost = next((place for place in known.get(lease[0], ()) if is_lost(place, each)), "")
                if lost and any(token(place).cluster_time >= each.until for place in places):
                    was_at = f"an earlier session was {history.described(lost)}, which was lost"
                    yield Violation("One history", by, f"continued, although {was_at}")
                    del known[lease[0]]


def _receiver(record: Delivered | Started) -> str:
    return record.session if isinstance(record, Delivered) else record.member


def _place_of(history: History, event: str) -> str:
    return history.written[history.order[event]].place if event in history.order else ""


def snapshot_exact(history: History) -> Iterator[Violation]:
    """At every position of a copy, and after it, a sink holds what the source held at that time, of the documents that
    the position covers."""
    for held in history.holds:
        if not held.is_last and held.place not in history.replaced:
            wanted = history.documents_at(held.place)
            if held.copying:
                wanted = {rank: version for rank, version in wanted.items() if rank <= held.copied}
                if held.may_have_more:
                    kept = tuple(each for each in held.documents if each.split("=")[0] <= held.copied)
                    held = replace(held, documents=kept)
            yield from _differences("Snapshot exact", history, held, wanted)


def snapshot_converges(history: History) -> Iterator[Violation]:
    """In the end a sink holds what the source has, also if it kept what it had applied without acknowledging it."""
    for held in history.holds:
        if held.is_last:
            yield from _differences("Snapshot converges", history, held, history.documents_at(held.place))


def _differences(guarantee: str, history: History, held: Holds, wanted: dict[str, str]) -> Iterator[Violation]:
    documents = dict(each.split("=") for each in held.documents)
    wanted = {rank: version for rank, version in wanted.items() if rank.startswith(held.within)}
    if documents == wanted:
        return
    kinds = {
        "missing": sorted(wanted.keys() - documents.keys()),
        "too many": sorted(documents.keys() - wanted.keys()),
        "different": [rank for rank in wanted if documents.get(rank, wanted[rank]) != wanted[rank]],
    }
    found = "; ".join(f"{kind}: {', '.join(ranks)}" for kind, ranks in kinds.items() if ranks)
    copied = f", copied up to {held.copied or 'nothing'}" if held.copying else ""
    yield Violation(guarantee, held.sink, f"{found}; at {token(held.place).cluster_time}{copied}")


CHECKERS: dict[str, Checker] = {
    "Ordered": ordered,
    "Complete": complete,
    "Unique": unique,
    "At least once": at_least_once,
    "Resumable or loud": resumable_or_loud,
    "Bookmarkable": bookmarkable,
    "Whole": whole,
    "Bounded": bounded,
    "Monotone commit": monotone_commit,
    "Fenced": fenced,
    "Convergent": convergent,
    "One history": one_history,
    "Snapshot exact": snapshot_exact,
    "Snapshot converges": snapshot_converges,
    **GROUP_CHECKERS,
}


def check(records: Iterable[Record], guarantees: Iterable[str] = CHECKERS) -> list[Violation]:
    """Yield all violations, guarantee by guarantee."""
    history = History(records)
    return [violation for name in guarantees for violation in CHECKERS[name](history)]

"""Which sessions are committed next, and what Redis's answers mean for them."""

from dataclasses import replace

from feedmux_server.core.limits.lease import LeaseRules
from feedmux_server.store.commit_queue import REJECTED_KEY_S, CommitQueue
from feedmux_server.store.handle import CommitHandle
from feedmux_server.store.model import CommitOutcome, CommitStatus, FenceCause, Lease
from tests.integration.state_support import Recorder, place, submit
from tests.tables import over
from tests.unit.store.test_handle import LEASE, Woken, stored_at

RULES = LeaseRules(lease_s=30.0, tombstone_s=3600.0)


class Site:
    def __init__(self) -> None:
        self.queue = CommitQueue(RULES, 0.0)
        self.recorders: dict[CommitHandle, Recorder] = {}

    def handle(self, lease: Lease = LEASE) -> CommitHandle:
        recorder = Recorder()
        made = CommitHandle(Woken(), lease, stored_at(0), recorder, 0.0)
        self.recorders[made] = recorder
        return made

    def queued(self) -> CommitHandle:
        handle = self.handle()
        self.queue.add(handle)
        return handle

    def answer(self, handle: CommitHandle, outcome: CommitOutcome, sent_s: float = 1.0) -> bool:
        return self.queue.answered(handle, handle.waiting, outcome, sent_s, sent_s)


@over(("instance", "cause"), [("me", "LEASE"), ("other", "TAKEOVER")])
def test_a_newer_session_fences_the_older_one(instance: str, cause: str) -> None:
    site = Site()
    older, newer = site.handle(), site.handle(replace(LEASE, epoch=8, instance_id=instance))
    assert site.queue.add(older)
    assert site.queue.add(newer)
    assert site.recorders[older].causes == [cause]
    assert site.queue.newest("t", "s") is newer
    assert list(site.queue) == [newer]


def test_an_older_session_that_comes_late_fences_nobody() -> None:
    site = Site()
    newer, late = site.handle(replace(LEASE, epoch=8)), site.handle()
    site.queue.add(newer)
    assert not site.queue.add(late), "Redis has to say who owns the subscription"
    assert site.recorders[newer].causes == site.recorders[late].causes == []
    assert site.queue.newest("t", "s") is newer


def test_a_stored_ack_is_no_longer_due_and_a_newer_one_still_is() -> None:
    site = Site()
    handle = site.queued()
    submit(handle, 1)
    site.queue.make_due(handle)
    assert site.queue.ready(1.0) == [handle]
    sent = handle.waiting
    submit(handle, 2)
    stored = CommitOutcome(CommitStatus.OK, position=place(1).position)
    site.queue.answered(handle, sent, stored, 1.0, 1.0)
    assert site.queue.ready(1.0) == [handle]
    site.answer(handle, replace(stored, position=place(2).position))
    assert site.queue.ready(1.0) == []
    assert [number for number, _ in site.recorders[handle].commits] == [1, 2]


def test_leases_are_renewed_in_time_and_not_before() -> None:
    site = Site()
    handle = site.queued()
    assert site.queue.ready(RULES.renew_after_s - 0.1) == []
    assert site.queue.ready(RULES.renew_after_s + RULES.check_every_s) == [handle]


def test_a_rejected_key_waits_alone() -> None:
    site = Site()
    handle, other = site.handle(), site.handle(replace(LEASE, name="other"))
    for each in (handle, other):
        site.queue.add(each)
        site.queue.make_due(each)
    assert not site.answer(handle, CommitOutcome(CommitStatus.FAILED))
    assert site.queue.ready(1.0) == [other]
    assert site.queue.ready(1.0 + REJECTED_KEY_S) == [handle, other]
    assert (site.recorders[handle].available, site.recorders[other].available) == ([False], [])


@over(("sent_s", "restores"), [(1.0, True), (RULES.tombstone_s, False)])
def test_a_lost_subscription_is_restored_unless_it_may_have_been_deleted(sent_s: float, *, restores: bool) -> None:
    site = Site()
    handle = site.queued()
    assert site.answer(handle, CommitOutcome(CommitStatus.MISSING), sent_s) is restores
    assert site.recorders[handle].causes == ([] if restores else ["LEASE"])


def test_a_session_is_forgotten_also_if_its_release_says_that_it_leaves_work() -> None:
    site = Site()
    handle = site.queued()
    handle.lease = replace(handle.lease, follows_lost=True)
    site.queue.forget(handle)
    assert list(site.queue) == []


def test_a_fenced_session_is_forgotten() -> None:
    site = Site()
    handle = site.queued()
    site.queue.make_due(handle)
    site.answer(handle, CommitOutcome(CommitStatus.FENCED, cause=FenceCause.SEEK))
    assert site.recorders[handle].causes == ["SEEK"]
    assert (list(site.queue), site.queue.has_due, site.queue.newest("t", "s")) == ([], False, None)

"""How a program settles an event."""

import bson
from bson.codec_options import CodecOptions

from feedmux.batches import BsonBatch
from feedmux.member_event import MemberEvent
from feedmux.outcomes import DONE, Failed, Outcome
from feedmux.positions import NO_POSITION


class Owner:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def settle(self, event: MemberEvent, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def test_each_way_to_settle() -> None:
    owner = Owner()
    raw = bson.encode({"_id": {}, "n": 1})
    event = MemberEvent(BsonBatch(memoryview(raw), 1, NO_POSITION, 0, CodecOptions()), 0, 2, owner)
    assert (event.document["n"], event.attempt) == (1, 2)
    event.ack()
    event.nack(2, "busy")
    event.nack()
    event.reject("bad")
    assert owner.outcomes == [DONE, Failed(2, "busy"), Failed(), Failed(reason="bad", reject=True)]

"""What the members of a group had from a host that was lost, as they tell the next host. Pure.

What a host stored last is half a second old. So the next one gathers, before it delivers anything, what its members say
of events that are unsettled by what is stored: an event that a member *holds* goes to that member and to nobody else,
before the rest of its key; an event that a member has *settled* does not come again. Then it reads until it has met the
events that are held.

A claim names an event by a hash of its `_id`, and is used for the first event that it fits. A member that lies gets,
or settles, events of its own subscription: it could do that by taking them, and by a seek.
"""

from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Final

from feedmux_server.core.delivery.ack_tracker import ENTRIES_AT_ONCE
from feedmux_server.core.delivery.key_runs import Hand
from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.chunk import Rendition, event_id

CLAIM_BYTES: Final = 150
"""What a claim costs."""


def claim_of(raw_id: bytes) -> int:
    """By which a member names the event with this `_id`: see `Open.held`."""
    return int.from_bytes(sha256(raw_id).digest()[:8], "little")


class Claims:
    """The claims on events that were not delivered yet."""

    __slots__ = ("_claimed", "_epochs", "_held", "_holders", "_met", "_pays", "_settled", "_told", "gathers", "waits")

    def __init__(self, pays: Callable[[int], None]) -> None:
        """`pays` receives by how many bytes its memory changes."""
        self.gathers = True
        """Whether members may come that have not told theirs: nothing is read yet."""
        self.waits = True
        """Whether nothing is delivered yet."""
        self._pays = pays
        self._held: dict[int, Hand] = {}
        """Who holds events that were not read yet, by claim."""
        self._holders: dict[int, Hand] = {}
        """Who holds events that were read, by their numbers in the ledger."""
        # The same by holder: hundreds of members may leave at once, and each looks only through its own.
        self._claimed: dict[Hand, set[int]] = {}
        self._epochs: dict[Hand, int] = {}
        """Of the host at which each was last."""
        self._met: dict[Hand, set[int]] = {}
        self._settled = set[int]()
        self._told: dict[Hand, set[int]] = {}
        """What each has told as settled, also if that was met since."""

    def __len__(self) -> int:
        return len(self._held) + len(self._settled)

    @property
    def awaited(self) -> int:
        """The number of events that members hold and that were not read yet."""
        return len(self._held)

    def add(self, hand: Hand, held: Iterable[int], settled: Iterable[int], epoch: int = 0) -> None:
        """Note what a member says whose last host had this epoch, in place of what it has said before: one that joins
        again and again has no more claims than one. Of two that hold an event, the one with the later
        host keeps it: the other one had no connection when that host delivered it again. With the same host, the first
        one does. Whoever holds an event keeps it also if another has settled it: the holder works."""
        before = len(self)
        self._withdraw_told(hand)
        own = self._claimed[hand] = set[int]()
        self._epochs[hand] = epoch
        for each in held:
            holder = self._held.get(each)
            if holder is not None and self._epochs[holder] >= epoch:
                continue
            if holder is not None:
                self._claimed[holder].remove(each)
            self._held[each] = hand
            own.add(each)
        self._told[hand] = set(settled)
        self._settled |= self._told[hand]
        self._pays(CLAIM_BYTES * (len(self) - before))

    def _withdraw_told(self, hand: Hand) -> None:
        for each in self._claimed.pop(hand, ()):
            del self._held[each]
        self._settled.difference_update(self._told.pop(hand, ()))

    def of(self, hand: Hand) -> bool:
        """Whether a member holds events."""
        return bool(self._claimed.get(hand) or self._met.get(hand))

    def withdraw(self, hand: Hand) -> None:
        """The member holds nothing any more."""
        before = len(self)
        self._epochs.pop(hand, None)
        self._told.pop(hand, None)  # what it has settled stays so
        for each in self._claimed.pop(hand, ()):
            del self._held[each]
        for number in self._met.pop(hand, ()):
            del self._holders[number]
        self._pays(CLAIM_BYTES * (len(self) - before))

    def holder_of(self, number: int) -> Hand | None:
        """The holder of an event that was read. To be asked once for each event: it is not known afterwards."""
        hand = self._holders.pop(number, None)
        if hand is not None:
            self._met[hand].remove(number)
        return hand

    def meet(self, rendition: Rendition, left: dict[int, int], begin: int) -> None:
        """Remove the events that are settled from `left`, whose keys are indexes, and note the holders of others.
        `begin` is the number of the event with the index 0."""
        before = len(self)
        for index in list(left):
            try:
                claim = claim_of(event_id(rendition.data, rendition.offsets[index]))
            except FeedmuxError:  # the pipeline has removed its `_id`
                continue
            hand = self._held.pop(claim, None)
            if hand is not None:
                self._claimed[hand].remove(claim)
                self._holders[begin + index] = hand
                self._met.setdefault(hand, set()).add(begin + index)
            elif claim in self._settled:
                del left[index]
            self._settled.discard(claim)
        self._pays(CLAIM_BYTES * (len(self) - before))

    def claimant_of(self, raw: bytes) -> Hand | None:
        """The holder of a dead letter's event, which is delivered again. It is not known afterwards."""
        claim = claim_of(event_id(raw, 0))
        hand = self._held.pop(claim, None)
        if hand is not None:
            self._claimed[hand].remove(claim)
            self._pays(-CLAIM_BYTES)
        return hand

    def release(self) -> bool:
        """Release claims that are used no more, as many as fit into one turn of the event loop. Returns whether there
        are more."""
        before = len(self)
        for by_holder in (self._claimed, self._met, self._told):
            left = ENTRIES_AT_ONCE
            while by_holder and left > 0:
                left -= 1 + len(by_holder.popitem()[1])
        for entries in (self._held, self._holders, self._epochs):
            for _ in range(min(len(entries), ENTRIES_AT_ONCE)):
                entries.popitem()
        for _ in range(min(len(self._settled), ENTRIES_AT_ONCE)):
            self._settled.pop()
        self._pays(CLAIM_BYTES * (len(self) - before))
        return any((self._claimed, self._met, self._told, self._held, self._holders, self._epochs, self._settled))

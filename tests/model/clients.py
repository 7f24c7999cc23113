"""The model's clients and the place store that stands for Redis."""

import random
from dataclasses import dataclass, field

from feedmux_server.core.resume_token import ResumeToken
from feedmux_server.core.subscriber import Subscriber


class FakeClient:
    """One session and what its client knows."""

    subscriber: Subscriber
    _place: ResumeToken

    def __init__(
        self, subscription: str, session: str, tenant: str, durable: bool, epoch: int, *, stops: bool, formed: bool
    ) -> None:
        self.subscription = subscription
        self.session = session
        self.tenant = tenant
        self.durable = durable
        self.epoch = epoch
        self.stops = stops
        """Ends at an invalidate; else goes on behind it."""
        self.formed = formed
        """Reads the other wire format."""
        self.woken = True
        self.ended = False
        self.sent: list[int] = []
        self.acked_place: ResumeToken

    @property
    def place(self) -> ResumeToken:
        """The position that was last sent."""
        return self._place

    @place.setter
    def place(self, place: ResumeToken) -> None:
        if not hasattr(self, "acked_place"):
            self.acked_place = place
        self._place = place

    def wake(self) -> None:
        self.woken = True


@dataclass(frozen=True, slots=True)
class Commit:
    subscription: str
    epoch: int
    place: ResumeToken


@dataclass(slots=True)
class FakeStore:
    """Stored places: only the newest epoch may write, only forward. Commits arrive late and in any order."""

    _places: dict[str, ResumeToken] = field(default_factory=dict)
    _epochs: dict[str, int] = field(default_factory=dict)
    _submitted: list[Commit] = field(default_factory=list)

    def open(self, subscription: str) -> int:
        self._epochs[subscription] = epoch = self._epochs.get(subscription, 0) + 1
        return epoch

    def place_of(self, subscription: str) -> ResumeToken | None:
        return self._places.get(subscription)

    def submit(self, subscription: str, epoch: int, place: ResumeToken) -> None:
        self._submitted.append(Commit(subscription, epoch, place))

    def flush(self, rng: random.Random) -> list[Commit]:
        """The commits that were taken."""
        rng.shuffle(self._submitted)
        late = rng.randint(0, len(self._submitted))
        due, self._submitted = self._submitted[late:], self._submitted[:late]
        return [commit for commit in due if self._takes(commit)]

    def _takes(self, commit: Commit) -> bool:
        if not self.is_current(commit) or not self.is_forward(commit):
            return False
        self._places[commit.subscription] = commit.place
        return True

    def is_current(self, commit: Commit) -> bool:
        return commit.epoch == self._epochs[commit.subscription]

    def is_forward(self, commit: Commit) -> bool:
        stored = self._places.get(commit.subscription)
        return stored is None or commit.place.is_after(stored)

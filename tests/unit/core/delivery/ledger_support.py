"""A ledger with events, for tests."""

from typing import Any

from feedmux_server.core.delivery.key_ledger import KeyLedger
from feedmux_server.core.delivery.key_runs import Hand, Runs
from feedmux_server.core.delivery.retry import Failure, RetryPolicy
from feedmux_server.core.events.chunk import Chunk
from feedmux_server.core.positions.ahead import Ahead
from tests.unit.core.delivery.group_events import START, chunks_of, group_event, number_of


class Group:
    """A ledger that has read events of these keys, numbered from 0."""

    def __init__(
        self,
        *keys: object,
        padding: int = 0,
        outstanding_max: int = 1000,
        attempts_max: int = 0,
        ahead: Ahead | None = None,
        per_chunk: int = 1000,
        reads: int | None = None,
    ) -> None:
        """`reads`: the number of chunks that the ledger has read; None: all."""
        self.paid = 0
        self.may_grow = True
        self.chunks = chunks_of([group_event(n, key, padding=padding) for n, key in enumerate(keys)], per_chunk)
        self.ledger = KeyLedger(
            START,
            outstanding_max,
            self._pays,
            lambda: self.may_grow,
            RetryPolicy(first_s=1.0, most_s=300.0, attempts_max=attempts_max),
            lambda: 0.0,
            ahead,
        )
        self.ledger.wanted = 1000
        self.read(*self.chunks[:reads])

    def read(self, *chunks: Chunk) -> None:
        for chunk in chunks:
            self.ledger.record(chunk, 0, chunk.count)

    def _pays(self, size: int) -> None:
        self.paid += size

    def take(self, hand: Hand, **limits: int) -> Runs:
        most = {"events_max": 1000, "credit_bytes": 1 << 20, "payload_max": 1 << 20, "event_max": 1 << 20}
        taken = self.ledger.take(hand, **{**most, "runs_max": 1000, **limits})
        assert isinstance(taken, Runs)
        return taken

    def runs(self, hand: Hand, **limits: int) -> list[list[int]]:
        taken = self.take(hand, **limits)
        numbers = iter(map(number_of, taken.parts))
        return [[next(numbers) for _ in range(count)] for count in taken.runs]

    def has_nothing_for(self, hand: Hand) -> bool:
        return self.ledger.take(
            hand, events_max=1000, credit_bytes=1 << 20, payload_max=1 << 20, event_max=1 << 20, runs_max=1000
        ) is None  # fmt: skip

    def fail(self, hand: Hand, sequence: int, now_s: float = 0.0, **what: Any) -> int:
        """How many events came back."""
        return self.ledger.fail(hand, Failure(sequence, **what), now_s)[0]

"""How long to wait between tries: exponential, with jitter, bounded. Randomness is an argument."""


class Backoff:
    """Delays grow from `initial_s` by `multiplier` up to `maximum_s`.

    `jitter` is the share, 0 to 1, of each delay that is left to chance: with 0.5 a delay of 4 s
    becomes 2 s to 4 s.
    """

    __slots__ = ("_initial_s", "_jitter", "_maximum_s", "_multiplier", "_next_s")

    def __init__(self, initial_s: float, maximum_s: float, multiplier: float, jitter: float) -> None:
        if not 0 < initial_s <= maximum_s or multiplier < 1 or not 0 <= jitter <= 1:
            raise ValueError("must hold: 0 < initial_s <= maximum_s, multiplier >= 1, jitter 0 to 1")
        self._initial_s = initial_s
        self._maximum_s = maximum_s
        self._multiplier = multiplier
        self._jitter = jitter
        self._next_s = initial_s

    def next_delay(self, random: float) -> float:
        """Seconds to wait now, for a `random` of 0 to 1."""
        delay_s = self._next_s
        self._next_s = min(self._maximum_s, delay_s * self._multiplier)
        return delay_s * (1 - self._jitter * (1 - random))

    def reset(self) -> None:
        """After a success: the next delay is the first one again."""
        self._next_s = self._initial_s

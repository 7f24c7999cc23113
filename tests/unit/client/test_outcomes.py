"""What a handler's error becomes on the wire."""

import pickle

import pytest

from feedmux.outcomes import Failed, Reject, RetryAfter, failed, outcome_of, rejected
from tests.tables import over


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Careless(RetryAfter):
    def __init__(self) -> None:
        pass


@over(
    ("error", "outcome"),
    [
        (ValueError("bad"), Failed(reason="ValueError: bad")),
        (ValueError(), Failed(reason="ValueError")),
        (Unprintable(), Failed(reason="Unprintable")),
        (ValueError("\ud800"), Failed(reason="ValueError: \\ud800")),
        (ValueError("é" * 2000), Failed(reason="ValueError: " + "é" * 506)),
        (RetryAfter(1.5, "later"), Failed(1.5, "later")),
        (pickle.loads(pickle.dumps(RetryAfter(1.5))), Failed(1.5)),
        (pickle.loads(pickle.dumps(RetryAfter(1.5, "later"))), Failed(1.5, "later")),
        (Careless(), Failed(reason="Careless")),
        (Reject("never"), Failed(reason="never", reject=True)),
    ],
)
def test_errors(error: Exception, outcome: Failed) -> None:
    assert outcome_of(error) == outcome


@over(
    ("delay", "error"),
    [("1", TypeError), (True, TypeError), (-1, ValueError), (float("nan"), ValueError), (1e12, ValueError)],
)
def test_wrong_delays(delay: float, error: type[Exception]) -> None:
    with pytest.raises(error):
        failed(delay, "")
    with pytest.raises(TypeError):
        rejected(1)  # type: ignore[arg-type]

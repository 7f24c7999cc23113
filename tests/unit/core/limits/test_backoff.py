import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.limits.backoff import Backoff
from tests.tables import over


def test_delays_grow_to_the_maximum_and_start_again() -> None:
    backoff = Backoff(0.5, 3, 2, 0)
    assert [backoff.next_delay(0.3) for _ in range(5)] == [0.5, 1, 2, 3, 3]
    backoff.reset()
    assert backoff.next_delay(0.9) == 0.5


def test_jitter_is_a_share_of_the_delay() -> None:
    assert Backoff(4, 4, 1, 0.5).next_delay(0) == 2
    assert Backoff(4, 4, 1, 0.5).next_delay(1) == 4
    assert Backoff(4, 4, 1, 1).next_delay(0) == 0


@given(st.floats(0.01, 10), st.floats(1, 1e9), st.floats(0, 1), st.lists(st.floats(0, 1), max_size=50))
def test_delays_stay_within_bounds(initial_s: float, multiplier: float, jitter: float, draws: list[float]) -> None:
    backoff = Backoff(initial_s, 10, multiplier, jitter)
    for draw in draws:
        assert 0 <= backoff.next_delay(draw) <= 10


@over("arguments", [(0, 1, 2, 0), (2, 1, 2, 0), (1, 2, 0.5, 0), (1, 2, 2, -0.1), (1, 2, 2, 1.1)])
def test_senseless_settings(arguments: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="initial_s"):
        Backoff(*arguments)

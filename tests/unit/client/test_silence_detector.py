"""SilenceDetector counts only time during which the process ran."""

from feedmux.silence_detector import SilenceDetector
from tests.tables import over


def silent_ticks(silence: SilenceDetector, ticks: int, now_s: float) -> list[bool]:
    return [silence.tick(now_s + (index + 1) * silence.tick_s) for index in range(ticks)]


def test_three_intervals_are_too_long() -> None:
    silence = SilenceDetector(10.0, 100.0)
    assert (silence.tick_s, silence.most_s) == (1.0, 30.0)
    assert silent_ticks(silence, 30, 100.0) == [False] * 29 + [True]


def test_a_message_begins_the_count_again() -> None:
    silence = SilenceDetector(10.0, 0.0)
    silent_ticks(silence, 29, 0.0)
    silence.heard()
    assert silent_ticks(silence, 31, 29.0) == [False] * 30 + [True]


@over("blocked_s", [2.0, 29.5, 31.0, 3600.0])
def test_time_in_which_nothing_could_be_heard_counts_as_two_ticks(blocked_s: float) -> None:
    silence = SilenceDetector(10.0, 0.0)
    assert not any(silent_ticks(silence, 27, 0.0))
    assert not silence.tick(27.0 + blocked_s)
    assert silence.tick(28.0 + blocked_s)


def test_the_interval_that_the_server_states_counts_from_then_on() -> None:
    silence = SilenceDetector(10.0, 0.0)
    silent_ticks(silence, 25, 0.0)
    silence.allow(20.0)
    assert (silence.tick_s, silence.most_s) == (2.0, 60.0)
    assert silent_ticks(silence, 31, 25.0) == [False] * 30 + [True]

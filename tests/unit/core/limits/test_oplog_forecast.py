"""The forecast of when a position leaves the oplog, tested with a simulated oplog: written, truncated, observed now and
then."""

from dataclasses import dataclass, field

import pytest

from feedmux_server.core.limits.headroom_alert import HeadroomAlert
from feedmux_server.core.limits.oplog_forecast import HEADROOM_MAX_S, OplogForecast, OplogState
from tests.tables import over

GB = 1 << 30


@dataclass
class Oplog:
    """Holds (cluster second, bytes) and is truncated by a hundredth of its bound at a time, like MongoDB's oplog."""

    size_max: int = 10 * GB
    entries: list[tuple[int, int]] = field(default_factory=list)
    now_s: int = 1_000_000
    size: int = 0

    def run(self, seconds: int, bytes_per_s: int, *, step_s: int = 10) -> None:
        for _ in range(seconds // step_s):
            self.now_s += step_s
            self.entries.append((self.now_s, bytes_per_s * step_s))
            self.size += bytes_per_s * step_s
            if self.size > self.size_max:
                while self.size > 0.99 * self.size_max:
                    self.size -= self.entries.pop(0)[1]

    def state(self, *, sizes: bool = True) -> OplogState:
        newest = self.entries[-1][0] if self.entries else self.now_s
        found = (self.size, self.size_max) if sizes else (None, None)
        return OplogState(self.entries[0][0] if self.entries else newest, newest, *found)


def watched(oplog: Oplog, seconds: int, bytes_per_s: int, *, sizes: bool = True) -> OplogForecast:
    """A forecast that has observed the oplog for a while."""
    forecast = OplogForecast()
    forecast.observe(oplog.state(sizes=sizes), oplog.now_s)
    for _ in range(seconds // 10):
        oplog.run(10, bytes_per_s)
        forecast.observe(oplog.state(sizes=sizes), oplog.now_s)
    return forecast


def really_left_s(oplog: Oplog, place_s: int, bytes_per_s: int) -> int:
    began_s = oplog.now_s
    while oplog.entries[0][0] <= place_s:
        oplog.run(10, bytes_per_s)
    return oplog.now_s - began_s


@pytest.mark.parametrize("sizes", [True, False], ids=["with sizes", "without"])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_full_oplog_that_is_written_evenly(share: float, sizes: bool) -> None:
    oplog, rate = Oplog(), 3 << 20
    oplog.run(2 * 3600, rate)
    forecast = watched(oplog, 600, rate, sizes=sizes)
    place = int(oplog.state().oldest_s + share * oplog.state().window_s)
    told = forecast.headroom_s(place)
    left = really_left_s(oplog, place, rate)
    assert 0.85 * left - 60 <= told <= 1.15 * left + 60


def test_a_burst_is_seen_within_two_minutes() -> None:
    oplog = Oplog()
    oplog.run(24 * 3600, 200_000)
    forecast = watched(oplog, 3600, 200_000)
    calm = forecast.headroom_s(oplog.now_s)
    for _ in range(12):
        oplog.run(10, 60 << 20)
        forecast.observe(oplog.state(), oplog.now_s)
    place = oplog.state().oldest_s + oplog.state().window_s // 2
    told = forecast.headroom_s(place)
    assert told < calm / 20
    left = really_left_s(oplog, place, 60 << 20)
    assert told <= 1.5 * left + 30


def test_what_was_sparse_falls_off_at_once_when_the_cut_comes_to_it() -> None:
    """Few writes for a day, then many for a minute: the bytes lie at the young end."""
    oplog = Oplog()
    oplog.run(24 * 3600, 10_000)
    forecast = watched(oplog, 600, 60 << 20)
    place = oplog.state().oldest_s + 60
    assert forecast.headroom_s(place) <= really_left_s(oplog, place, 60 << 20) + 30


@over("rate", [0, 1000])
def test_a_young_oplog_that_is_far_from_full_puts_nobody_at_risk(rate: int) -> None:
    oplog = Oplog()
    oplog.run(120, 1000)
    forecast = watched(oplog, 300, rate)
    assert forecast.headroom_s(oplog.now_s - 300) == HEADROOM_MAX_S


def test_a_first_look_goes_by_the_past_that_the_oplog_holds() -> None:
    oplog = Oplog()
    oplog.run(3 * 3600, 2 << 20)
    forecast = OplogForecast()
    state = oplog.state()
    forecast.observe(state, 0.0)
    assert forecast.headroom_s(state.newest_s) == pytest.approx(state.window_s, rel=0.05)
    assert forecast.headroom_s(state.oldest_s) < 120
    assert forecast.headroom_s(state.oldest_s - 5) == 0.0


def test_a_place_in_the_first_second_of_a_young_oplog_is_not_lost() -> None:
    forecast = OplogForecast()
    forecast.observe(OplogState(100, 100, 5_000, 1 << 30), 0.0)
    assert forecast.headroom_s(100) > 3600


@pytest.mark.parametrize(("is_whole", "before"), [(False, 0), (True, 600)])
def test_without_sizes_a_first_look_takes_a_second_for_a_second(is_whole: bool, before: float) -> None:
    forecast = OplogForecast()
    forecast.observe(OplogState(100, 700, is_whole=is_whole), 0.0)
    assert [forecast.headroom_s(each) for each in (400, 100, 40)] == [300, 0, before]


def test_a_place_before_an_oplog_that_was_never_cut_leaves_with_its_oldest_entry() -> None:
    forecast = OplogForecast()
    forecast.observe(OplogState(100, 700, 5_000, 1 << 20, is_whole=True), 0.0)
    assert forecast.headroom_s(40) == forecast.headroom_s(100) > 3600


def test_after_a_burst_the_forecast_calms_down() -> None:
    oplog = Oplog()
    oplog.run(24 * 3600, 200_000)
    forecast = watched(oplog, 300, 60 << 20)
    hot = forecast.headroom_s(oplog.now_s)
    for _ in range(360 * 3):
        oplog.run(10, 1000)
        forecast.observe(oplog.state(), oplog.now_s)
    assert forecast.headroom_s(oplog.now_s) > 20 * hot


def test_nothing_is_told_before_the_first_look() -> None:
    with pytest.raises(LookupError):
        OplogForecast().headroom_s(1)


@over(
    ("headrooms", "told"),
    [
        ([9000, 4000], []),
        ([9000, 3500, 3400, 601], [3500]),
        ([9000, 3500, 500, 100, 1], [3500, 500]),
        ([500], [500]),
        ([3500, 3700, 3500, 5300, 3500], [3500]),
        ([3500, 5500, 3500], [3500, 3500]),
        ([500, 899, 500, 901, 500], [500, 500]),
        ([500, 9000, 3000, 500], [500, 3000, 500]),
        ([0, 0, 0], [0]),
    ],
)
def test_what_is_news(headrooms: list[float], told: list[float]) -> None:
    alarm = HeadroomAlert((600.0, 3600.0))
    assert [each for each in headrooms if alarm.falls_to(each)] == told


def test_without_thresholds_there_is_none() -> None:
    assert not HeadroomAlert(()).falls_to(0)

"""The alarm: once for each threshold, and not again while a forecast fluctuates around it."""

from feedmux_server.core.limits.headroom_alert import HeadroomAlert
from tests.tables import over


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

"""What the monitors have found at their last checks, for the metrics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from feedmux_server.core.limits.oplog_forecast import OplogForecast


@dataclass(slots=True, eq=False)
class MonitorResults:
    forecasts: Mapping[str, OplogForecast]
    """By source; `jobs.oplog_monitor` keeps them up to date."""
    unavailable: set[str] = field(default_factory=set)
    """The sources whose MongoDB did not answer; from `jobs.oplog_monitor`."""
    stored_times: Mapping[tuple[str, str], Sequence[int]] = field(default_factory=dict)
    """By source and tenant: the cluster times (seconds) of stored positions, the oldest first; from
    `jobs.position_monitor`."""
    damaged: Mapping[str, int] = field(default_factory=dict)
    """The number of subscriptions of which Redis has only a part, by tenant; from `jobs.position_monitor`."""
    unattended: Mapping[str, int] = field(default_factory=dict)
    """The number of groups without a member, by tenant; from `jobs.position_monitor`."""

    @classmethod
    def of_sources(cls, names: Iterable[str]) -> "MonitorResults":
        return cls({name: OplogForecast() for name in names})

"""What each name of a probe says, by what is available and what the server does."""

from feedmux_server.rpc.health import CHANGE_FEED, LIVENESS, OPERATOR, READINESS, REDIS, STARTUP, SUBSCRIPTIONS, Health
from tests.tables import over

HERE, BOTH = {REDIS: True, "source/a": True, "source/b": False}, {LIVENESS, STARTUP}


@over(
    ("started", "there", "draining", "serving"),
    [
        (False, {}, False, {LIVENESS}),
        (False, HERE, False, {LIVENESS, REDIS}),
        (True, {}, False, BOTH | {OPERATOR}),
        (True, HERE, False, BOTH | {OPERATOR, REDIS, READINESS, "", CHANGE_FEED, SUBSCRIPTIONS}),
        (True, HERE | {REDIS: False}, False, BOTH | {OPERATOR, CHANGE_FEED}),
        (True, HERE | {"source/a": False}, False, BOTH | {OPERATOR, REDIS, SUBSCRIPTIONS}),
        (True, HERE, True, BOTH | {REDIS}),
    ],
)
def test_statuses(started: bool, there: dict[str, bool], draining: bool, serving: set[str]) -> None:
    health = Health()
    if started:
        health.started()
    health.show(there)
    if draining:
        health.drain()
    names = {LIVENESS, STARTUP, READINESS, "", CHANGE_FEED, SUBSCRIPTIONS, OPERATOR, REDIS}
    statuses = health._statuses._statuses
    assert set(statuses) == names, "no source is named"
    assert {name for name, status in statuses.items() if status == 1} == serving
    assert health.ready == (READINESS in serving)

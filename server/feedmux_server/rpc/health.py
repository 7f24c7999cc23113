"""The answers to probes: grpc.health.v1 on every port, and on its own port without TLS and credentials.

liveness                 SERVING as long as the event loop answers, whatever the state of dependencies
startup                  SERVING from the moment the server serves
readiness, "" (empty)    SERVING while Redis and at least one source are available, until the drain begins
feedmux.v1.ChangeFeed    SERVING while at least one source is available, until the drain begins
feedmux.v1.Subscriptions SERVING while Redis is available, until the drain begins
feedmux.v1.Operator      SERVING until the drain begins
redis                    SERVING while Redis is available

These names are fixed: health needs no credentials, so it does not reveal which sources are configured. The metric
`feedmux.source.available` and the log do.
"""

from collections.abc import Mapping
from typing import Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from feedmux.v1 import change_feed_pb2, operator_pb2, subscriptions_pb2
from feedmux_server.rpc.health_service import REFLECTION_LIMITS, HealthService, Unnamed, reflection_handlers

CHANGE_FEED: Final = change_feed_pb2.DESCRIPTOR.services_by_name["ChangeFeed"].full_name
SUBSCRIPTIONS: Final = subscriptions_pb2.DESCRIPTOR.services_by_name["Subscriptions"].full_name
OPERATOR: Final = operator_pb2.DESCRIPTOR.services_by_name["Operator"].full_name
HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

LIVENESS, STARTUP, READINESS, REDIS = "liveness", "startup", "readiness", "redis"


class Health:
    """The statuses of a process."""

    def __init__(self) -> None:
        self._statuses = HealthService()
        self._started = self._draining = False
        self._there: Mapping[str, bool] = {}
        self.ready = False
        """What `readiness` says."""
        self._tell()

    def handlers(self, names: tuple[str, ...] = ()) -> tuple[grpc.GenericRpcHandler, ...]:
        """Handlers for one server: health, and reflection of health and of the services `names`."""
        described = (*names, HEALTH, reflection.SERVICE_NAME)
        return (
            self._statuses.handlers(HEALTH, Unnamed()),
            reflection_handlers(reflection.SERVICE_NAME, described, Unnamed(REFLECTION_LIMITS)),
        )

    def started(self) -> None:
        self._started = True
        self._tell()

    def drain(self) -> None:
        """Report NOT_SERVING, from now on, to all clients that choose a server by its health."""
        self._draining = True
        self._tell()

    def show(self, there: Mapping[str, bool]) -> None:
        """Show whether each dependency, `redis` or `source/NAME`, is available."""
        self._there = dict(there)
        self._tell()

    def _tell(self) -> None:
        redis = self._there.get(REDIS, False)
        source = any(there for name, there in self._there.items() if name != REDIS)
        serving = self._started and not self._draining
        self.ready = serving and redis and source
        told = {
            LIVENESS: True,
            STARTUP: self._started,
            READINESS: self.ready,
            "": self.ready,
            CHANGE_FEED: serving and source,
            SUBSCRIPTIONS: serving and redis,
            OPERATOR: serving,
            REDIS: redis,
        }
        for name, up in told.items():
            self._statuses.show(name, up=up)

"""`python -m feedmux_server.health_probe HOST:PORT [SERVICE]`: asks grpc.health.v1, and exits with 0 if the answer is
SERVING.

For container health checks and `helm test`, where no other health client is installed.
"""

import argparse
import sys
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from feedmux.cli.reachability import endpoint

_TIMEOUT_S = 5.0
_WITHOUT_PROXY = ("grpc.enable_http_proxy", 0)


def status_of(address: str, service: str) -> str:
    """Return the health status, such as SERVING, or the name of gRPC's status if there is no answer.

    Never through a proxy: the engine that runs a container may have set http_proxy, and a health port is nearby.
    """
    with grpc.insecure_channel(address, (_WITHOUT_PROXY,)) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)
        try:
            answer = stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=_TIMEOUT_S)
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m feedmux_server.health_probe", description=__doc__)
    parser.add_argument("address", metavar="HOST:PORT", type=endpoint)
    parser.add_argument("service", nargs="?", default="", help="such as readiness (all of the server)")
    args = parser.parse_args()
    status = status_of(args.address, args.service)
    sys.stdout.write(f"{args.address}: {status}\n")
    return 0 if status == "SERVING" else 1


if __name__ == "__main__":
    sys.exit(main())

"""`python -m feedmux_server.probe HOST:PORT [SERVICE]`: asks grpc.health.v1, and ends with 0 where it says SERVING.

For container health checks and `helm test`, where there is no other program to ask with.
"""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

TIMEOUT_S = 5.0


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2:
        print("usage: python -m feedmux_server.probe HOST:PORT [SERVICE]", file=sys.stderr)
        return 2
    address, *service = arguments
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service=service[0] if service else "")
        try:
            answer = stub.Check(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}", file=sys.stderr)
            return 1
    status = health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)
    print(f"{address}: {status}")
    return 0 if answer.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

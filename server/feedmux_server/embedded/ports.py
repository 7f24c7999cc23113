"""Free TCP ports on 127.0.0.1 for servers that will be stopped and started again on them.

They lie below the kernel's ephemeral range: while such a server is down, a reconnecting client would sooner
or later be given its port as a source port, and the server could not bind it again.
"""

import random
import socket
from pathlib import Path

_LOWEST = 20_000


def free_ports(count: int) -> list[int]:
    """`count` different ports nobody listens on at this moment."""
    ports: set[int] = set()
    while len(ports) < count:
        port = _candidate()
        if _is_free(port):
            ports.add(port)
    return sorted(ports)


def _candidate() -> int:
    try:
        ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        ephemeral = 32_768
    highest = ephemeral if ephemeral > _LOWEST + 1000 else 60_000
    return random.SystemRandom().randrange(_LOWEST, highest)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

"""Free TCP ports on 127.0.0.1 for servers that will be stopped and started again on them.

They lie below the kernel's ephemeral range: while such a server is down, a reconnecting client would sooner
or later be given its port as a source port, and the server could not bind it again.

A port is taken only once its server listens. Until then nobody else should be given it, so a process goes through the
ports in their order, from a random one on: it gives none twice, and hardly ever meets another process.
"""

import itertools
import random
import socket
from collections.abc import Iterator
from pathlib import Path

_LOWEST = 20_000


def free_ports(count: int) -> list[int]:
    """`count` different ports nobody listens on at this moment."""
    return sorted(itertools.islice(filter(_is_free, _in_turn), count))


def _all_in_turn() -> Iterator[int]:
    ports = range(_LOWEST, _highest())
    first = random.SystemRandom().randrange(len(ports))
    return itertools.cycle((*ports[first:], *ports[:first]))


def _highest() -> int:
    try:
        ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        ephemeral = 32_768
    return ephemeral if ephemeral > _LOWEST + 1000 else 60_000


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_in_turn = _all_in_turn()

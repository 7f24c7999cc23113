"""Free TCP ports on 127.0.0.1 for servers that will be stopped and started again on them.

The ports are below the kernel's ephemeral range: otherwise, while such a server is down, a reconnecting client would
sooner or later get the server's port as a source port, and the server could not bind it again.

A port is in use only while its server listens, not while the server is down. So a process reserves blocks of ports for
itself as long as it lives, and returns no port twice.
"""

import itertools
import os
import random
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

_LOWEST = 20_000
_BLOCK = 100
_DEFAULTS = frozenset({26_379, 27_017, 27_018, 27_019})
"""Default ports of Redis Sentinel and MongoDB: a user may have these servers, and they may be down at this moment."""


def free_ports(count: int) -> list[int]:
    """`count` different ports on which no process listens at this moment."""
    return sorted(itertools.islice(filter(is_free, _in_turn), count))


def _all_in_turn() -> Iterator[int]:
    ports = range(_LOWEST, _highest())
    blocks = [ports[start : start + _BLOCK] for start in range(0, len(ports), _BLOCK)]
    first = random.SystemRandom().randrange(len(blocks))
    refused = 0
    for block in itertools.cycle((*blocks[first:], *blocks[:first])):
        refused = 0 if keep(block.start) else refused + 1
        if not refused or refused > len(blocks):
            yield from (port for port in block if port not in _DEFAULTS)


def keep(block: int) -> bool:
    """Reserve the block of ports that begins at `block` for this process; False if another process has it.

    The system releases the block when the process ends, however it ends.
    """
    if block in _kept or sys.platform != "linux":
        return True
    keeper = socket.socket(socket.AF_UNIX)
    try:
        keeper.bind(f"\0feedmux-ports-{block}")
    except OSError:
        keeper.close()
        return False
    _kept[block] = keeper.detach()
    return True


def _highest() -> int:
    try:
        ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        ephemeral = 32_768
    return ephemeral if ephemeral > _LOWEST + 1000 else 60_000


def is_free(port: int) -> bool:
    """Whether no process listens on the port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


_kept: dict[int, int] = {}
"""The file descriptors that reserve blocks."""
_in_turn = _all_in_turn()


def _forget() -> None:
    """Let a forked process reserve ports of its own: the others are its parent's."""
    global _in_turn
    _kept.clear()
    _in_turn = _all_in_turn()


os.register_at_fork(after_in_child=_forget)

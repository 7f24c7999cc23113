"""The default ports of feedmux, MongoDB and Redis. No test uses them: a server of the user may be listening on them."""

import errno
import os
import socket
from pathlib import Path
from typing import Any

from tests.started import descendants

DEFAULT_PORTS = frozenset({7117, 7118, 7119, 9117, 6379, 26379, 27017})
_SYN_SENT, _ESTABLISHED, _LISTEN = "02", "01", "0A"


def refuse() -> None:
    """Let no Python socket of this process listen on a default port, not even for a moment: beside the test that does,
    another test or a server of the user's fails."""
    bind = socket.socket.bind

    def checked(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[1] in DEFAULT_PORTS:
            raise AssertionError(f"a test must not use the default ports: {address}")
        bind(self, address)

    # Not an audit hook: while one runs, another thread cannot set its trace function.
    socket.socket.bind = checked  # type: ignore[assignment, method-assign]


def used() -> dict[int, str]:
    """The default ports that this process and its descendants use, each with the command of a process that uses it
    (Linux).

    Reading the process table takes time and is not atomic: a port that is found is checked again. The kernel takes
    10 ms to list all sockets, after each of thousands of tests. So a port that rejects connections is taken for unused.
    """
    return {} if all(map(_rejects, DEFAULT_PORTS)) else _used() and _used()


def _rejects(port: int) -> bool:
    try:
        with socket.socket() as one, socket.socket(socket.AF_INET6) as other:
            answers = one.connect_ex(("127.0.0.1", port)), other.connect_ex(("::1", port))
    except OSError:
        return False  # no IPv6
    return set(answers) <= {errno.ECONNREFUSED, errno.EADDRNOTAVAIL}


def _used() -> dict[int, str]:
    sockets = {inode: port for inode, port in _sockets().items() if port in DEFAULT_PORTS}
    if not sockets:
        return {}
    found: dict[int, str] = {}
    for pid, command in {os.getpid(): "this process", **descendants(os.getpid())}.items():
        for inode in _inodes(pid) & sockets.keys():
            found[sockets[inode]] = command
    return found


def _sockets() -> dict[str, int]:
    """The ports on which sockets listen or to which they connect, by inode."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            state, inode = fields[3], fields[9]
            if state in (_LISTEN, _ESTABLISHED, _SYN_SENT):
                address = fields[1] if state == _LISTEN else fields[2]
                found[inode] = int(address.rpartition(":")[2], 16)
    return found


def _inodes(pid: int) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    try:
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = str(descriptor.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                found.add(target[8:-1])
    except OSError:
        pass
    return found

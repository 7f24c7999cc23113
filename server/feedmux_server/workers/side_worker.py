"""The child's half of `side_process`: answers requests from standard input, one after the other.

The module that the process runs calls `serve_requests`. This module imports no other module of feedmux, so that a side
process starts fast. The process ends with its standard input, and so with the server, however the server ends.

Requests and answers travel over one socket, which is both standard input and standard output. A request consists of its
length (8 bytes, little endian) and its bytes; an answer is two of these, a short one and one that may be large, which
the server need not take apart. When the process is ready, it first sends an empty answer.
"""

import os
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from struct import Struct

LENGTH = Struct("<Q")


Answer = tuple[bytes, bytes]


def serve_requests(answer: Callable[[bytes], Answer]) -> None:
    """Answer requests until the server closes the socket. An exception of `answer` ends the process."""
    with socket.socket(fileno=os.dup(sys.stdin.fileno())) as server, server.makefile("rb") as requests:
        # Text that a library prints must not become part of an answer.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        with suppress(ConnectionError):
            _send(server, (b"", b""))
            while len(head := requests.read(LENGTH.size)) == LENGTH.size:
                (size,) = LENGTH.unpack(head)
                request = requests.read(size)
                if len(request) < size:
                    return
                _send(server, answer(request))


def _send(server: socket.socket, answer: Answer) -> None:
    for part in answer:
        server.sendall(LENGTH.pack(len(part)))
        server.sendall(part)

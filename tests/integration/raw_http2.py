"""A client of HTTP/2 that does what gRPC's clients do not: requests that never end, streams that nobody reads."""

import socket
import struct
from collections.abc import Callable, Sequence
from typing import Self

from feedmux_server.core.events.batch_fields import varint
from tests.waiting import wait_until

_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _WINDOW = 0, 1, 3, 4, 6, 8
_END_HEADERS, _ACK = 4, 1
_DEFAULT_WINDOW = 65_535
_FRAME_BYTES = 16_384
_NO_WINDOW = struct.pack(">HI", 4, 0)


class RawConnection:
    """One connection. It reads only in `pump`."""

    def __init__(self, port: int, *, takes: bool = True, answers_pings: bool = True) -> None:
        """`takes`: whether the server may send messages at all; it may always end streams."""
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._received = b""
        self._window = self.stream_window = _DEFAULT_WINDOW
        """What the server allows before it has taken more: on the connection, and on a new stream."""
        self._answers_pings = answers_pings
        self._windows: dict[int, int] = {}
        self._left: dict[int, bytes] = {}
        self._next = 1
        self.closed = False
        self.ended: set[int] = set()
        """Streams that the server has reset or ended."""
        self._send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b"" if takes else _NO_WINDOW))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def call(
        self,
        method: str,
        metadata: Sequence[tuple[str, str]] = (),
        unfinished: int = 0,
        compressed: bytes = b"",
        message: bytes = b"",
    ) -> int:
        """Opens a stream, and has a `message` ready to be sent: or the beginning of one of `unfinished` bytes, or one
        that is `compressed`. The stream's number."""
        number, self._next = self._next, self._next + 2
        fields = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", method),
            (":authority", "x"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *metadata,
        ]
        self._send(_frame(_HEADERS, _END_HEADERS, number, b"".join(_literal(*field) for field in fields)))
        self._windows[number] = self.stream_window
        if unfinished:
            self._left[number] = b"\0" + struct.pack(">I", unfinished) + b"x" * (unfinished - 1)
        if message:
            self._left[number] = b"\0" + struct.pack(">I", len(message)) + message
        if compressed:
            self._left[number] = b"\1" + struct.pack(">I", len(compressed)) + compressed
        return number

    def pump(self) -> int:
        """Receive what has arrived, send as much as the server allows, and return the number of bytes sent."""
        self._take()
        sent = 0
        for number, left in list(self._left.items()):
            size = min(len(left), self._windows[number], self._window, _FRAME_BYTES)
            if size <= 0 or number in self.ended or self.closed:
                continue
            self._windows[number] -= size
            self._window -= size
            self._left[number] = left[size:]
            self._send(_frame(_DATA, 0, number, left[:size]))
            sent += size
        return sent

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self.closed = True

    def _take(self) -> None:
        try:
            while not self.closed:
                data = self._socket.recv(1 << 16, socket.MSG_DONTWAIT)  # the socket has no time limit, or this waits
                self.closed = not data
                self._received += data
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        while len(self._received) >= 9:
            size = int.from_bytes(self._received[:3], "big")
            if len(self._received) < 9 + size:
                break
            kind, flags, number = self._received[3], self._received[4], int.from_bytes(self._received[5:9], "big")
            content, self._received = self._received[9 : 9 + size], self._received[9 + size :]
            self._on(kind, flags, number, content)

    def _on(self, kind: int, flags: int, number: int, content: bytes) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for at in range(0, len(content), 6):
                name, value = struct.unpack_from(">HI", content, at)
                if name == 4:  # the window of a stream
                    for each in self._windows:
                        self._windows[each] += value - self.stream_window
                    self.stream_window = value
            self._send(_frame(_SETTINGS, _ACK, 0, b""))
        elif kind == _WINDOW:
            more = int.from_bytes(content, "big")
            if not number:
                self._window += more
            elif number in self._windows:
                self._windows[number] += more
        elif kind == _PING and not flags & _ACK and self._answers_pings:
            self._send(_frame(_PING, _ACK, 0, content))
        elif kind == _RESET or (kind == _HEADERS and flags & 1):
            self.ended.add(number)


def pump_until(connections: Sequence[RawConnection], condition: Callable[[], object]) -> None:
    """Sends as much as the server takes, until the condition holds and the server takes no more for now."""

    def done() -> object:
        while sum(each.pump() for each in connections):
            pass
        return condition()

    wait_until(done, lambda: f"{sum(len(each.ended) for each in connections)} streams ended", every_s=0.005)


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + content


def _literal(name: str, value: str) -> bytes:
    return b"\0" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode()
    return (bytes((len(data),)) if len(data) < 127 else b"\x7f" + varint(len(data) - 127)) + data

"""gRPC's options: how much a connection and a call may make the transport hold before the caller is known."""

from dataclasses import dataclass
from typing import Final

LOOKAHEAD_BYTES: Final = 16 * 1024
"""Bytes received for a call that the server does not read yet. A call being read gets as much as its message needs."""
METADATA_BYTES: Final = 12 * 1024
"""Metadata of a call, as `rpc.auth` counts them."""
ENTRY_BYTES: Final = 32
"""What HTTP/2, and so gRPC, adds to each entry (RFC 9113, 6.5.2). Without it, gRPC would reject many short entries."""
_METADATA_UNREAD_BYTES: Final = 16 * 1024
"""Above this, gRPC rejects a call itself, without an ErrorInfo. Its two limits are equal: between them, it would reject
calls at random."""
_TOO_LARGE_BYTES: Final = 16 * 1024
"""Bytes received above the limit, so that a slightly too large request gets an ErrorInfo; gRPC rejects larger requests
unread."""


@dataclass(frozen=True, slots=True)
class Transport:
    """Limits of one server."""

    request_bytes: int = 256 * 1024
    connections: int = 4_096
    streams_per_connection: int = 10_000
    connection_age_s: float = 0.0
    """A client is asked to replace a connection of this age; 0: never. Its calls continue."""

    def options(self) -> tuple[tuple[str, int], ...]:
        return (
            ("grpc.max_receive_message_length", self.request_bytes + _TOO_LARGE_BYTES),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_allowed_incoming_connections", self.connections),
            ("grpc.max_concurrent_streams", self.streams_per_connection),
            ("grpc.max_metadata_size", _METADATA_UNREAD_BYTES),
            ("grpc.absolute_max_metadata_size", _METADATA_UNREAD_BYTES),
            # A new connection must complete TLS and send its HTTP/2 settings in this time.
            ("grpc.server_handshake_timeout_ms", 10_000),
            # Clients ping a connection that has been silent for 20 s; gRPC's own limit is 5 minutes.
            ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
            # Otherwise the windows grow to megabytes for a client that sends fast.
            ("grpc.http2.bdp_probe", 0),
            ("grpc.http2.lookahead_bytes", LOOKAHEAD_BYTES),
            # A second process on the port would take half the calls.
            ("grpc.so_reuseport", 0),
            # A client that vanished is noticed within 40 s: TCP has `keepalive_timeout_ms` to confirm what was sent,
            # and the client `ping_timeout_ms` (60 s by default) to answer a ping.
            ("grpc.keepalive_time_ms", 30_000),
            ("grpc.keepalive_timeout_ms", 10_000),
            ("grpc.http2.ping_timeout_ms", 10_000),
            ("grpc.keepalive_permit_without_calls", 1),
            # gRPC varies the age by a tenth, and does not end the calls on the connection: `rpc.session_lifecycle` ends
            # sessions.
            *((("grpc.max_connection_age_ms", int(self.connection_age_s * 1000)),) if self.connection_age_s else ()),
        )

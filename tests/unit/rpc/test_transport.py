"""gRPC's options follow the limits of the server."""

from feedmux_server.rpc.transport import METADATA_BYTES, Transport


def test_a_request_that_is_slightly_too_large_still_gets_an_answer() -> None:
    options = dict(Transport(request_bytes=1000, connections=7, streams_per_connection=3).options())
    assert 1000 < options["grpc.max_receive_message_length"] <= 1000 + 16 * 1024
    assert (options["grpc.max_allowed_incoming_connections"], options["grpc.max_concurrent_streams"]) == (7, 3)
    assert METADATA_BYTES < options["grpc.max_metadata_size"] == options["grpc.absolute_max_metadata_size"]


def test_connections_have_an_age_only_if_it_is_set() -> None:
    assert dict(Transport(connection_age_s=1.5).options())["grpc.max_connection_age_ms"] == 1500
    assert "grpc.max_connection_age_ms" not in dict(Transport().options())

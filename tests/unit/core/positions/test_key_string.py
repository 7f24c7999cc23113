import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmux_server.core.positions.key_string import KeyStringReader


@given(st.binary(max_size=100))
def test_any_bytes_are_read_or_refused_with_value_error(noise: bytes) -> None:
    reader = KeyStringReader(noise)
    try:
        while not reader.at_end:
            reader.read()
    except ValueError:
        pass


def test_depth_is_bounded() -> None:
    with pytest.raises(ValueError, match="deeply"):
        KeyStringReader(b"\x50" * 100_000).read()

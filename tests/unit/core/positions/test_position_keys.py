"""The keys of positions: how they are written, and what happens when they are replaced."""

import pytest

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.positions.position_keys import KEYS_MAX, PositionKey, PositionKeys, format_keys, parse_keys
from tests.tables import over

OLD, NEW = (bytes([each]) * 32 for each in (1, 2))


def test_keys_are_lines_of_base64() -> None:
    text = "# the first signs\n\n" + format_keys([NEW, OLD])
    assert parse_keys(text) == (NEW, OLD)
    for wrong in ("", "# nothing", "c2hvcnQ=", "not base64!"):
        with pytest.raises(ValueError, match="openssl rand -base64 32") as caught:
            parse_keys(wrong)
        assert "not base64!" not in str(caught.value)


def test_the_file_may_hold_so_many_keys_and_each_once() -> None:
    *keys, another = (bytes([each]) * 32 for each in range(KEYS_MAX + 1))
    assert parse_keys(format_keys([*keys, *keys])) == tuple(keys)
    with pytest.raises(ValueError, match=f"more than {KEYS_MAX} keys"):
        parse_keys(format_keys([*keys, another]))


def test_a_mistake_is_named_by_its_line() -> None:
    with pytest.raises(ValueError, match="line 4 is not base64"):
        parse_keys(f"# keys\n{format_keys([OLD])}\nsecret!\n")
    with pytest.raises(ValueError, match="line 2 has less than 32 bytes"):
        parse_keys(format_keys([OLD, b"short"]))


def test_replacing_says_whether_anything_changed() -> None:
    keys = PositionKeys([OLD])
    assert not keys.replace([OLD])
    assert keys.replace([OLD, NEW])
    assert keys.replace([NEW, OLD]), "another key signs"
    assert (keys.signing.material, keys.materials) == (NEW, (NEW, OLD))
    assert keys.verifying(PositionKey(OLD).id) is not None
    assert keys.verifying(b"none") is None


@over("ask", [lambda keys: keys.signing, lambda keys: keys.verifying(b"any")])
def test_without_keys_the_client_is_asked_to_wait(ask: object) -> None:
    keys = PositionKeys()
    assert not keys.known
    assert callable(ask)
    with pytest.raises(FeedmuxError) as caught:
        ask(keys)
    assert (caught.value.reason, caught.value.retry_after_s) == (ErrorReason.STATE_UNAVAILABLE, 2.0)

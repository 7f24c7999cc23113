"""The keys of positions in Redis: made once, restored when they are lost, and never replaced by nonsense."""

import logging

import pytest

from feedmux_server.core.positions.position_keys import PositionKeys, format_keys
from feedmux_server.store.connection import StartupError
from feedmux_server.store.signing_keys import SigningKeys, keys_key, stored_position_keys
from tests.unit.simulated import sim_redis
from tests.virtual_time import in_virtual_time

OLD, NEW = (bytes([each]) * 32 for each in (1, 2))


@in_virtual_time
async def test_an_operator_rotates_the_key_in_redis() -> None:
    (there, client), keys = sim_redis(), PositionKeys()
    for materials in ((OLD,), (OLD, NEW), (NEW, OLD), (NEW,)):
        there.run(("SET", keys_key(), format_keys(materials)))
        await SigningKeys(client, keys).refresh()
        assert keys.materials == materials


@in_virtual_time
async def test_a_key_that_signs_outlives_an_older_copy_of_redis() -> None:
    (there, client), keys = sim_redis(), PositionKeys([NEW, OLD])
    there.run(("SET", keys_key(), format_keys((OLD,))))
    await SigningKeys(client, keys).refresh()
    assert keys.materials == (NEW, OLD)
    assert there.run(("GET", keys_key())) == format_keys((NEW, OLD)).encode()


@in_virtual_time
async def test_what_is_no_key_in_redis_is_logged_once_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    (there, client), keys = sim_redis(), PositionKeys([OLD])
    there.run(("SET", keys_key(), "canary"))
    known = SigningKeys(client, keys)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            await known.refresh()
    assert keys.materials == (OLD,)
    assert [each.getMessage().endswith("The keys read before stay in force") for each in caplog.records] == [True]
    for call in (SigningKeys(client, PositionKeys()).refresh(), stored_position_keys(client)):
        with pytest.raises(StartupError, match="key_file") as caught:
            await call
        assert "canary" not in str(caught.value) + caplog.text

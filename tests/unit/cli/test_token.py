"""`feedmux token decode`."""

import json

import bson
import pytest

from feedmux_server.core.positions.position import PositionEncoder
from feedmux_server.core.positions.position_keys import PositionKeys
from tests.unit.cli.command_support import Run
from tests.unit.core.delivery.streams_support import mark, token


@pytest.mark.parametrize(
    "text", ["", "82", "nonsense", "deadbeef", "{", '{"_data": 1}', '{"_data": "zz"}', "8gGAAAAA", "f2"]
)
def test_what_is_no_token(run: Run, text: str) -> None:
    done = run("token", "decode", text)
    assert done.returncode == 1
    assert done.stderr.startswith("feedmux: ")
    assert "Traceback" not in done.stderr


def test_a_token_and_the_position_that_holds_it_say_the_same(run: Run) -> None:
    hexadecimal = bson.decode(token(1).raw)["_data"]
    said = [
        json.loads(run("token", "decode", text, "--json").stdout)
        for text in (hexadecimal, json.dumps({"_data": hexadecimal}))
    ]
    assert said[0] == said[1]
    assert (said[0]["kind"], said[0]["token_type"], said[0]["from_invalidate"]) == ("resume token", "event", False)
    assert said[0]["cluster_time_seconds"] == token(1).cluster_time >> 32
    position = PositionEncoder(PositionKeys([bytes(32)]), bytes(8), bytes(8)).encode(token(1))
    of_position = json.loads(run("token", "decode", position.hex(), "--json").stdout)
    assert of_position == said[0] | {"kind": "position", "verified": False}
    assert "not verified" in run("token", "decode", position.hex()).stdout


def test_a_token_of_an_event_that_newer_versions_add(run: Run) -> None:
    operation = f"3C{b'operationType'.hex()}003C{b'endOfTransaction'.hex()}00"
    described = f"46{b'operationDescription'.hex()}00461E{b'txnNumber'.hex()}002B0E00"
    said = run("token", "decode", f"826553F100000000012B042C0100296E46{operation}{described}0004", "--json")
    found = json.loads(said.stdout)
    assert found["event_identifier"] == {"operationType": "endOfTransaction", "operationDescription": {"txnNumber": 7}}
    assert (found["undecoded"], found["collection_uuid"]) == ("", None)


def test_a_time_is_no_event(run: Run) -> None:
    said = json.loads(run("token", "decode", bson.decode(mark(1).raw)["_data"], "--json").stdout)
    assert (said["token_type"], said["event_identifier"]) == ("high-water mark", None)

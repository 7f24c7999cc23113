"""The sort key puts changes in the order in which they happened, also across token versions."""

import itertools
import random

import bson
from bson import Int64

from feedmux_server.core.positions.resume_token import ResumeToken
from feedmux_spark.rows import default_schema, row_maker
from feedmux_spark.rows.token_order import SORT_KEY_BYTES
from tests.tables import over
from tests.unit.spark.events import event, stream, token

PLACES = [
    {"seconds": seconds, "increment": increment, "index": index, "invalidate": invalidate}
    for seconds, increment, index, invalidate in itertools.product(
        (1, 1_700_000_000, 0xFFFF_FFFF), (1, 2, 0xFFFF_FFFF), (0, 1, 63, 64, 127, 128, 40_000, 1 << 24), (False, True)
    )
]


def sort_keys(*events: dict[str, object]) -> list[bytes]:
    (batch,) = row_maker("envelope", default_schema("envelope"), "fail").record_batches(stream(*events))
    keys: list[bytes] = batch.column("sort_key").to_pylist()
    return keys


def test_sort_keys_sort_as_the_server_compares_tokens() -> None:
    tokens = [token(**place, version=version, tail="46AB") for place in PLACES for version in (1, 2)]  # type: ignore[arg-type]
    random.Random(5).shuffle(tokens)
    keys = sort_keys(*(event(1, _id=each) for each in tokens))
    assert {len(key) for key in keys} == {SORT_KEY_BYTES}
    places = [ResumeToken.from_key_string(bytes.fromhex(each["_data"])).key[:4] for each in tokens]
    by_key = sorted(range(len(tokens)), key=lambda row: keys[row])
    assert [places[row] for row in by_key] == sorted(places)
    # One position has one key, whatever the version; different positions have different keys.
    assert len(set(keys)) == len(set(places)) == len(PLACES)


@over("version", [1, 2])
def test_a_copied_document_is_after_all_changes_of_its_time(version: int) -> None:
    """Its token is the high-water mark of the next time, and has no part in which changes of that time differ."""
    for seconds, increment in ((1_700_000_000, 5), (1_700_000_000, 0xFFFF_FFFF)):
        mark = ResumeToken.high_water_mark((seconds << 32 | increment) + 1, version)
        document = event(1, _id={**bson.decode(mark.raw), "snapshot": {"_id": 1}})
        last = event(1, _id=token(seconds, increment, index=1 << 24, invalidate=True))
        following = event(1, _id=token(mark.cluster_time >> 32, mark.cluster_time & 0xFFFF_FFFF))
        keys = sort_keys(following, document, last)
        assert sorted(keys) == keys[::-1]
        assert keys[1][:8] == keys[2][:8]


def test_fragments_of_one_event_come_in_their_order() -> None:
    numbers = [3, 1, 2, 300, 256]
    keys = sort_keys(*(event(1, splitEvent={"fragment": number, "of": 300}) for number in numbers))
    assert [number for _, number in sorted(zip(keys, numbers, strict=True))] == sorted(numbers)


@over("identifier", [Int64(5), "x" * 3000, None])
def test_what_names_the_document_has_no_part_in_it(identifier: object) -> None:
    (plain,) = sort_keys(event(1))
    (other,) = sort_keys(event(1, documentKey={"_id": identifier}, _id=token(1_700_000_000, 1, tail="46" * 900)))
    assert plain == other

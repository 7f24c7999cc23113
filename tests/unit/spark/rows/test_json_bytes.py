"""Damaged bytes. `test_json_text.py` compares the texts with those of the server."""

import json
from contextlib import suppress
from typing import Any

import bson
from hypothesis import given
from hypothesis import strategies as st

from feedmux_spark.rows import json_bytes
from tests.unit.core.events.test_extended_json import EXACT, retained_after_long_names


@given(st.sampled_from([each for each, _ in EXACT]), st.data())
def test_bytes_that_are_no_bson_are_refused(document: bytes | dict[str, Any], data: st.DataObject) -> None:
    raw = bytearray(document if isinstance(document, bytes) else bson.encode(document))
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ValueError):
        json.loads(json_bytes.text_of(bytes(raw)))


def test_long_names_are_not_kept() -> None:
    assert retained_after_long_names(json_bytes.text_of) < 1_000_000

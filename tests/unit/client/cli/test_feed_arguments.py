"""Feeds and starts as users type them."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

import pytest
from bson import Timestamp

from feedmux.cli.feed_arguments import namespace, pipeline, place_of, position_text, scope_name, start
from feedmux.feeds import Feed
from tests.tables import over


def test_a_pipeline_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    file.write_text('[{"$match": {"n": 1}}]')
    assert pipeline(f"@{file}") == file.read_text()
    file.write_bytes(b"\xef\xbb\xbf[]")  # with a byte order mark, as editors on Windows write it
    assert pipeline(f"@{file}") == "[]"


def test_a_pipeline_file_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "latin").write_bytes(b"\xe9")
    (tmp_path / "object").write_text("{}")
    (tmp_path / "comma").write_text("[{},\n}")
    for name, words in (
        ("none", "none cannot be read: No such file"),
        ("", "cannot be read: Is a directory"),
        ("endless", "endless is larger than 1024 KiB"),
        ("latin", "latin is not UTF-8"),
        ("object", "an array"),
        ("comma", r"comma is not JSON: .* \(line 2 column 1\)$"),
    ):
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            pipeline(f"@{tmp_path}/{name}")


def test_a_pipeline_file_without_the_at_sign(tmp_path: Path) -> None:
    file = tmp_path / "pipeline.json"
    file.write_text("[]")
    with pytest.raises(argparse.ArgumentTypeError, match=rf"not JSON: .*; to read the file, write @{file}"):
        pipeline(str(file))
    with pytest.raises(argparse.ArgumentTypeError, match=r"line 1 column 1\)$"):
        pipeline("x" * 5_000)


@over("text", ["[" * 100_000, "[" + "9" * 5_000 + "]", '["\udcff"]'])
def test_a_pipeline_that_cannot_be_read(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^(nested too deeply, or has a number .*|not UTF-8)$"):
        pipeline(text)


def test_a_pipeline_is_sent_as_it_is_typed() -> None:
    text = '[{"$match": {"a": {"$regex": "^a", "$ne": "abc"}, "b": {"$oid": "abc"}, "b": 1}}]'
    assert pipeline(text) == text


@over("text", ["tomorrow", "2026-11-27T25:00:00Z", "5 min"])
def test_what_is_no_start_is_told_what_a_start_is(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not a time \(.*Z\), how long ago \(15m\), earliest"):
        start(text)


@over("text", ["1764500000", "1711011512345", "1795799726000"])
def test_a_bare_number_is_no_start(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="write seconds since 1970 as SECONDS:1, or as a time"):
        start(text)


@over(
    ("text", "found"),
    [
        ("*", (None, None)),
        ("shop", ("shop", None)),
        ("shop.orders", ("shop", "orders")),
        ("shop.orders.eu", ("shop", "orders.eu")),
        ("shop.a[.b", None),
        ("shop[.orders]", None),
        ("[shop]", None),
        (".orders", None),
        ("shop.", None),
        ("", None),
    ],
)
def test_a_namespace_is_split_at_its_first_dot(text: str, found: tuple[str | None, str | None] | None) -> None:
    if found is None:
        with pytest.raises(argparse.ArgumentTypeError, match=r"is not DB or DB\.COLL|leave them out"):
            namespace(text)
    else:
        assert namespace(text) == found
        assert scope_name(Feed(*found)) == text


@over(
    ("text", "kind", "time"),
    [
        ("now", "latest", (0, 0)),
        ("earliest", "earliest", (0, 0)),
        ("snapshot", "snapshot", (0, 0)),
        ("2026-11-21T10:00:00Z", "time", (1_795_255_200, 0)),
        ("2026-11-21 10:00", "time", (1_795_255_200, 0)),
        ("2026-11-21T12:00:00+02:00", "time", (1_795_255_200, 0)),
        ("1795255200:3", "operation_time", (1_795_255_200, 3)),
    ],
)
def test_notations_of_a_start(text: str, kind: str, time: tuple[int, int]) -> None:
    found = start(text)
    assert (found.kind, found.time) == (kind, time)


def test_how_long_ago() -> None:
    now_s = int(datetime.now(UTC).timestamp())
    for text, seconds in (("90s", 90), ("15m", 900), ("2h", 7200), ("7d", 604_800)):
        assert start(text).time[0] >= now_s - seconds
    with pytest.raises(argparse.ArgumentTypeError, match="too long ago"):
        start("999999999d")
    with pytest.raises(argparse.ArgumentTypeError, match="not a cluster time"):
        start(f"{Timestamp(2**32 - 1, 1).time + 1}:1")


TOKEN = "826B02F300000000142B022C0100296E5A1004"


def test_tokens_and_positions_as_any_command_prints_them() -> None:
    position = b"\xf2\xfb\xff\x01"
    for text in (position_text(position), position_text(position) + "=", position.hex(), "8vv/AQ=="):
        assert place_of(text) == position
    for text in (TOKEN, TOKEN.lower(), f'{{"_data": "{TOKEN}"}}', f" {TOKEN}\n"):
        assert place_of(text) == {"_data": TOKEN}
    assert (start(TOKEN).kind, start(position_text(position)).kind) == ("start_after", "position")


@over("text", ["{", "{}", '{"_data": 5}', '{"$oid": "x"}', "82F", "82", "2026", "de" * 15, "?", ""])
def test_what_is_neither_a_token_nor_a_position(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="a resume token"):
        place_of(text)

"""The tenants file: its content, and the location of its mistakes."""

import json
from pathlib import Path
from typing import Any

import bson
import pytest
from bson import DatetimeMS, Int64, ObjectId

from feedmux_server.config.errors import ConfigError
from feedmux_server.config.load import load_tenants
from feedmux_server.core.grants.match import match_expression
from feedmux_server.tenants.registry import hash_key

ONE, TWO = "1" * 64, "2" * 64

GOOD_YAML = f"""\
tenants:
  - name: shop
    api_key_hashes: ["{ONE}"]
  - name: search
    api_keys:
      - sha256: "{TWO}"
        label: ci
        expires: 2027-01-31T00:00:00Z
    certificates:
      - common_name: search.example.com
      - uri: spiffe://example.com/search
"""
GOOD_TOML = f"""
[[tenants]]
name = "shop"
api_key_hashes = ["{ONE}"]
[[tenants]]
name = "search"
api_keys = [{{ sha256 = "{TWO}", label = "ci", expires = 2027-01-31T00:00:00Z }}]
certificates = [{{ common_name = "search.example.com" }}, {{ uri = "spiffe://example.com/search" }}]
"""


def match_file(match: str) -> str:
    return f"tenants:\n  - name: a\n    grants:\n      - database: shop\n        match: {match}\n"


def mistake(folder: Path, text: str, name: str = "tenants.yaml") -> str:
    path = folder / name
    path.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load_tenants(path)
    message = str(refused.value)
    assert str(path) in message
    assert "canary" not in message
    return message


@pytest.mark.parametrize(("name", "text"), [("t.yaml", GOOD_YAML), ("t.toml", GOOD_TOML)])
def test_what_it_holds(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    shop, search = load_tenants(tmp_path / name).records()
    assert shop.name == "shop"
    assert [key.sha256 for key in shop.api_keys] == [ONE]
    (key,) = search.api_keys
    assert (key.sha256, key.label, key.expires_s) == (TWO, "ci", 1_801_353_600.0)
    assert [f"{each.kind}:{each.value}" for each in search.certificates] == [
        "common_name:search.example.com",
        "uri:spiffe://example.com/search",
    ]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("(a)  - name: b\n    colour: canary\n", 4, "tenants.1.colour: there is no such"),
        ("tenants:\n  - name: 'a{canary}'\n", 2, "tenants.0.name: tenant must be letters"),
        ("(a)    api_key_hashes:\n      - canary\n", 3, "64 hexadecimal digits"),
        ("(a)    api_keys:\n      - label: x\n", 4, "tenants.0.api_keys.0.sha256: it is required"),
        ("(a)    api_keys:\n      - sha256: HASH\n        expires: canary\n", 5, "tenants.0.api_keys.0.expires"),
        ("(a)    api_keys:\n      - sha256: HASH\n        expires: 2027-01-31 10:00:00\n", 5, "timezone"),
        ("(a)    api_key_hashes: [HASH]\n  - name: a\n", 4, "this tenant appears in the file twice"),
        (
            "(a)    api_key_hashes: [HASH]\n  - name: b\n    api_keys: [\n      {sha256: HASH}]\n",
            6,
            "this key appears in the file twice",
        ),
        (
            "(a)    certificates: [{dns: x}]\n  - name: b\n    certificates:\n      - dns: x\n",
            6,
            "this dns appears in the file twice",
        ),
        ("(a)    certificates:\n      - {dns: x, uri: y}\n", 4, "name one of"),
        ("(a)    name: b\n", 3, "appears twice in its mapping"),
        ("(a)   canary: [\n", 3, "cannot be parsed"),
        ("tenants:\n  - name: *canary\n", 2, "cannot be parsed"),
        ("tenants:\n  - name: !canary a\n", 2, "cannot be parsed"),
        ("tenants: 7\n", 1, "tenants: it should be a list"),
        ("tenants: []\n", 1, "tenants: it should have at least 1 entry"),
        ("(a)    grants: shop\n", 3, "tenants.0.grants: it should be a list"),
        # Each of these let its tenant see more, or for longer, than the file seems to say.
        ("(a)    grants:\n    # - database: shop\n", 2, "grants has no value"),
        ("(a)    grants:\n      - database: shop\n        match:\n", 4, "match has no value"),
        ("(a)    api_keys:\n      - sha256: HASH\n        expires: ~\n", 4, "expires has no"),
        (
            f"(a)    api_key_hashes: ['{hash_key('')}']\n",
            3,
            "the hash of an empty key: callers without a key would be accepted",
        ),
        ("(a)    quotas: 5\n", 3, "tenants.0.quotas: it should be a mapping of names to values"),
        # Reads of history would never begin.
        ("(a)    quotas: {catch_up_streams: 0}\n", 3, "should be greater than or equal to 1"),
        ("default_quotas:\n  catch_up_streams: 0\ntenants: [{name: a}]\n", 2, "should be greater than or equal to 1"),
    ],
)
def test_mistakes_are_pointed_at(tmp_path: Path, text: str, line: int, words: str) -> None:
    message = mistake(tmp_path, text.replace("(a)", "tenants:\n  - name: a\n").replace("HASH", f"'{ONE}'"))
    assert f"line {line}" in message
    assert words in message


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    message = mistake(tmp_path, "tenants:\n  - nam: a\n  - name: ''\n")
    assert all(f"line {line}:" in message for line in (2, 3))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tenants = [}", "line 1"),
        ("tenants = " + "[" * 5000, "cannot be parsed"),
        (
            '[[tenants]]\nname = "a"\ncolour = "canary"\n',
            "colour: there is no such option; docs/tenants.md",
        ),
        ('[[tenants]]\nname = "a"\n[[tenants]]\nname = "a"\n', "tenants.1.name: this tenant"),
    ],
)
def test_mistakes_in_toml_are_named_by_path(tmp_path: Path, text: str, words: str) -> None:
    assert words in mistake(tmp_path, text, "tenants.toml")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "tenants: []",
        "\0",
        "a: &a [*a]\n",
        "1: 2",
        "tenants: [{1: 2}]",
        "tenants: [{[canary]: 2}]",
        "tenants: [{name: a, api_keys: [{expires: 2027-13-45}]}]",
        "tenants: " + "[" * 1000,
    ],
)
def test_what_is_no_tenants_file(tmp_path: Path, text: str) -> None:
    mistake(tmp_path, text)


@pytest.mark.parametrize("name", ["a{b}", "a*", "a:b", "a/b", "a b", "a\nb", "", "ä", "x" * 121, "{a}"])
def test_names_that_mean_something_to_redis(tmp_path: Path, name: str) -> None:
    assert "tenants.0.name" in mistake(tmp_path, json.dumps({"tenants": [{"name": name}]}))


@pytest.mark.parametrize(
    ("match", "value"),
    [
        ("{a: {$oid: 65f000000000000000000001}}", {"a": ObjectId("65f000000000000000000001")}),
        ("{a: {$ne: {$date: '2026-11-28T05:30:00Z'}}}", {"a": {"$ne": DatetimeMS(1_795_843_800_000)}}),
        ("{a: {$in: [{$numberLong: '5'}, 5, x]}}", {"a": {"$in": [Int64(5), 5, "x"]}}),
        ("{a: {$date: {$numberLong: '999999999999999'}}}", {"a": DatetimeMS(999_999_999_999_999)}),
    ],
)
def test_values_of_a_match(tmp_path: Path, match: str, value: dict[str, Any]) -> None:
    (tmp_path / "tenants.yaml").write_text(match_file(match))
    (tenant,) = load_tenants(tmp_path / "tenants.yaml").records()
    assert tenant.grants is not None
    assert tenant.grants[0].match == bson.encode(value)
    match_expression(tenant.grants[0].match, "$$after")


@pytest.mark.parametrize(
    ("match", "words"),
    [
        (
            "{a: {$oid: canary}}",
            'match.a: $oid marks extended JSON, whose form is {"$oid": "24 hexadecimal digits"}',
        ),
        ("{$or: [{b: {$binary: UVE=, $type: '00', $ne: canary}}]}", "match.$or.0.b: $binary marks extended JSON"),
        ("{a: {$date: 5}}", "match.a: $date marks extended JSON"),
        ("{a: 2026-11-28}", "written as extended JSON"),
        ("&a {b: *a}", "match"),
        ("{a: {1: x, '1': y}}", "another value"),
        ("{a: {$regex: canary, $ne: x}}", "not $regex"),
        ("{a: .nan}", "match.a: not a finite double"),
    ],
)
def test_a_match_that_is_rejected(tmp_path: Path, match: str, words: str) -> None:
    assert words in mistake(tmp_path, match_file(match))


def test_a_file_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="/dev/zero cannot be read: it has more than 50,000,000 characters"):
        load_tenants(Path("/dev/zero"))

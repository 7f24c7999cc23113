"""YAML with the lines of its values, and without quoting the file, which may hold passwords."""

import json

import pytest

from feedmux_server.yaml_with_lines import MarkedError, parse_yaml
from tests.tables import over

TEXT = """\
tenants:
  - name: a
    keys:
      - one
      - two
  - {name: b, keys: [three]}
"""


@over(
    ("path", "line"),
    [
        (["tenants"], 1),
        (["tenants", 0], 2),
        (["tenants", 0, "name"], 2),
        (["tenants", 0, "keys"], 3),
        (["tenants", 0, "keys", 1], 5),
        (["tenants", 1, "keys", 0], 6),
        (["tenants", 0, "absent"], 2),
        (["tenants", 7, "name"], 2),
        (["tenants", 0, "name", "deeper"], 2),
        (["absent"], 1),
        ([], None),
    ],
)
def test_a_line_is_that_of_the_value_or_of_what_is_around_it(path: list[int | str], line: int | None) -> None:
    assert parse_yaml(TEXT).line(path) == line


@over(
    ("text", "message"),
    [
        ("a: 1\na: 2\n", "line 2: this key appears twice in its mapping"),
        ("a:\n  - b: 1\n    b: 2\n", "line 3: this key appears twice in its mapping"),
        ("a: [canary\n", "line 2, column 1: "),
        ("a: 'canary\n", "line 2, column 1: "),
        ("a: !canary x\n", "line 1, column 4: "),
        ('a: 1\nb: "canary \\ud83d"\n', "line 2: this text holds half of a surrogate pair"),
        ('["\\ude00\\ud83d"]\n', "line 1: this text holds half of a surrogate pair"),
        ("a: \0", "not YAML: an unreadable character or value"),
    ],
)
def test_a_mistake_is_named_by_its_line_and_not_quoted(text: str, message: str) -> None:
    with pytest.raises(MarkedError) as caught:
        parse_yaml(text)
    assert str(caught.value).startswith(message)
    assert "canary" not in str(caught.value)


def test_an_empty_file() -> None:
    assert (parse_yaml("").content, parse_yaml("").line(["a"])) == (None, None)


def test_a_character_that_json_escapes_as_a_pair() -> None:
    assert parse_yaml(json.dumps({"\U0001f600": "a\U0001f600\ufeff"})).content == {"\U0001f600": "a\U0001f600\ufeff"}


def test_aliases_are_checked_once_however_often_they_are_used() -> None:
    """Each level refers nine times to the level before: 9^40 values, if each alias were followed."""
    levels = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 41)]
    marked = parse_yaml("\n".join(levels))
    assert len(marked.content["a40"]) == 9
    assert marked.line(["a40", 0]) == 40


@over("word", ["no", "yes", "On", "off", "0123", "12:30", "1_000", "0x1F", "0b1", "+5", "1:30.5", "1e3", "0o17"])
def test_what_is_compared_with_data_is_read_as_it_is_written_or_refused(word: str) -> None:
    for text in (f"match: {{a: {word}}}", f"match:\n  a: {{$in: [x,\n {word}]}}", f"b: &b {{a: {word}}}\nmatch: *b"):
        with pytest.raises(MarkedError, match=r"^line \d+, column \d+: YAML reads this word or number as another"):
            parse_yaml(text, exact={"match"})
    assert parse_yaml(f"a: {word}", exact={"match"}).content != {}
    assert parse_yaml(f"match: {{a: '{word}'}}", exact={"match"}).content == {"match": {"a": word}}
    plain = "match: {a: [true, False, 0, -5, 12, 1.5, nobody, 12:30:00h, e3, 1.2.3]}"
    assert parse_yaml(plain, exact={"match"}).content["match"]["a"][:6] == [True, False, 0, -5, 12, 1.5]


@over("name", ["no", "On", "7", "1.0", "null", "~", "2026-11-28"])
def test_a_field_that_yaml_reads_as_another_value_is_refused(name: str) -> None:
    """JSON would have the field `false` for `no`, and `$nor` would withhold nothing."""
    for text in (f"match: {{{name}: 1}}", f"match:\n  $nor: [{{a: 1,\n {name}: 1}}]"):
        with pytest.raises(MarkedError, match=r"^line \d+, column \d+: YAML reads this word or number as another"):
            parse_yaml(text, exact={"match"})
    assert parse_yaml("b: &b {a: 1}\nmatch: {<<: *b}", exact={"match"}).content["match"] == {"a": 1}
    quoted = f"match: {{'{name}': 1}}"
    assert parse_yaml(quoted, exact={"match"}).content == {"match": {name: 1}}

"""Comments and docstrings use the words of the glossary, as the pages do (tests/checks/test_docs.py has the table)."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.checks.test_docs import REPOSITORY, WORDS, listed, wrong_words
from tests.telemetry.promql import dashboard, rules

GENERATED: Final = ("clients/go/feedmux/feedmuxpb/", "clients/python/feedmux/v1/")
QUOTES: Final = ("tests/checks/test_docs.py", "tests/checks/test_words.py")
"""The table of words, and its test."""
LINE_COMMENT: Final = {
    ".go": r"//(.*)",
    ".java": r"//(.*)|^\s*/?\*+(.*)",
    ".ts": r"//(.*)|^\s*/?\*+(.*)",
    ".js": r"//(.*)|^\s*/?\*+(.*)",
    ".proto": r"//(.*)",
    ".lua": r"--(.*)",
    ".yaml": r"(?:^|\s)#(.*)",
    ".toml": r"(?:^|\s)#(.*)",
    ".sh": r"(?:^|\s)#(.*)",
}
CODE: Final = re.compile(r"`[^`\n]*`")
ANY_WORD: Final = re.compile("|".join(WORDS), re.IGNORECASE)
"""Most files have none: one search of their text for all of them is quicker than finding the comments."""


def texts(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a file's comments and docstrings, with their numbers."""
    source = path.read_text()
    if path.suffix == ".py":
        yield from python_texts(source)
        return
    pattern = re.compile(LINE_COMMENT[path.suffix])
    for number, line in enumerate(source.splitlines(), 1):
        if found := pattern.search(line):
            yield number, next(text for text in found.groups() if text is not None)


def python_texts(source: str) -> list[tuple[int, str]]:
    """Comments, and strings that are statements of their own."""
    found = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            found += enumerate(node.value.value.splitlines(), node.lineno)
    return found


def wrong(path: Path) -> list[str]:
    """Phrases with another word in the glossary, with their lines."""
    found = []
    for number, line in texts(path) if ANY_WORD.search(path.read_text()) else ():
        for phrase, instead in WORDS.items():
            found += [
                f"{number}: {match[0]!r}: write {instead}"
                for match in re.finditer(phrase, CODE.sub("", line), re.IGNORECASE)
            ]
    return found


def sources() -> list[str]:
    """The files with code that people write."""
    patterns = ("*.py", *(f"*{suffix}" for suffix in LINE_COMMENT))
    return [name for name in listed(*patterns) if not name.startswith(GENERATED) and name not in QUOTES]


def test_comments_mean_what_they_say() -> None:
    found = {name: lines for name in sources() if (lines := wrong(REPOSITORY / name))}
    assert found == {}


def test_alerts_and_panels_mean_what_they_say() -> None:
    texts = [text for rule in rules() for text in rule["annotations"].values()]
    texts += [f"{panel['title']}. {panel.get('description', '')}" for panel in dashboard()["panels"]]
    assert [wrong for text in texts for wrong in wrong_words(text)] == []

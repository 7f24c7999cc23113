"""The Markdown pages: links lead somewhere, lines and the README are not too long, and words have one meaning."""

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.tables import over

REPOSITORY = Path(__file__).parents[2]
README_LINES_MAX = 120
COLUMNS_MAX = 120
GENERATED = {
    "docs/client-conformance.md": "written by python -m tests.conformance.clients.table",
    "docs/conformance.md": "written by python -m tests.conformance.statements",
    "docs/metrics.md": "written by python -m tests.telemetry.metrics_page",
    "docs/reference/api.md": "written by python -m tests.reference.pages",
    "docs/reference/commands.md": "written by python -m tests.reference.pages",
    "docs/reference/configuration.md": "written by python -m tests.reference.pages",
}
"""Pages that a program writes: its text has to be corrected, and not the page."""
DECISIONS = "docs/adr/README.md"
DECISION = re.compile(
    r"# (?P<number>[1-9]\d*)\. (?P<title>.+)\n\n"
    r"Status: (?P<status>accepted|superseded by [1-9]\d*) · Date: (?P<date>\d{4}-\d\d-\d\d)\n\n"
    + r"\n".join(rf"## {section}\n\n(?:[^#\n].*\n|\n(?!#))+" for section in ("Context", "Decision", "Consequences"))
)
"""The form of a decision record."""
RECORDS = ("CHANGELOG.md",)
"""Pages that record the past, in the words of that time."""
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]^]+\]: (\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([^"]+)">')
INDENTED_CODE = re.compile(r"(?<=\n\n)(?: {4}.*\n|\n(?= {4}))+")
FROM_CODE = re.compile(r"<!-- (?!end\b)[\w ]+ -->.*?<!-- end -->", re.DOTALL)
WIDE = re.compile(
    r"\|"  # a row of a table
    r"|<"  # HTML
    r"|\[[^\]]+\]: "  # where a link or a footnote leads
    r"|(?:[-*] )?!?\[[^\]]*\]\(\S+\)[.,;:]?$",  # nothing but a link or an image
)
"""Matches the lines that cannot be wrapped."""


WORDS = {
    r"\b(?:begin|start|resume|continue|reconnect|come)(?:s|ed)? behind\b"
    r"|\b(?:one|place|position|documents?|stages?|token) behind\b": "after (behind is for lag only)",
    r"\bfor ever\b": "forever, endlessly, or the limit",
    r"\b(?:go|goes|going|went) on\b(?! to\b)": "resume, or continue",
    r"\b(?:is|are|was|were|that|while|when) away\b": "is unavailable",
    r"\b(?:held|holds?|holding) back\b": "throttled",
    r"\b(?:is|are|was|were|be|been) given up\b": "evicted, closed, or abandoned",
    r"\blet(?:s|ting)? in\b": "accept, or reject",
    r"\bmend(?:s|ed|ing)?\b": "fix, or repair",
    r"\b(?:is|are|been) told\b": "notify, or report",
    r"\b(?:stored|last|old|oldest|same) places?\b"
    r"|\b(?:los|mov|leav)(?:es?|t|ing|ed) (?:its|their|the) place\b": "position",
    r"\b(?:leading|trailing) streams?\b": "live, or catch-up",
    r"\bSee the module\b": "what the class does",
}
"""Phrases with another word in the glossary (docs/concepts.md), each with what to write instead. A phrase that is often
right is not in this table."""


def listed(*patterns: str) -> list[str]:
    """The repository's files whose names match."""
    found = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [name for name in found.stdout.split() if (REPOSITORY / name).is_file()]


def pages() -> list[str]:
    """The repository's Markdown files."""
    return listed("*.md")


def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", path.read_text())


@cache
def anchors(path: Path) -> frozenset[str]:
    """What a link may name in a page, as GitHub makes them from its headings."""
    found: dict[str, int] = {}
    names = set(ANCHOR.findall(path.read_text()))
    for heading in HEADING.findall(prose(path)):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        names.add(f"{slug}-{found[slug]}" if slug in found else slug)
        found[slug] = found.get(slug, 0) + 1
    return frozenset(names)


def dead_links(page: Path) -> list[str]:
    """The links of a page to files or headings that do not exist."""
    dead = []
    for match in LINK.finditer(CODE.sub("", prose(page))):
        link = match[1] or match[2]
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    return dead


def lines_of(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page with their numbers; lines of code are empty."""
    for pattern in (FENCE, INDENTED_CODE):
        text = pattern.sub(lambda code: "\n" * code[0].count("\n"), text)
    return enumerate(text.split("\n"), 1)


def wide_lines(text: str) -> list[int]:
    """The numbers of the lines of prose that are wider than COLUMNS_MAX."""
    return [number for number, line in lines_of(text) if len(line) > COLUMNS_MAX and not WIDE.match(line.lstrip())]


def wrong_words(text: str) -> list[str]:
    """The phrases of a page that are in WORDS, each with its line and what to write instead."""
    # Headings are exempt, because links lead to them.
    text = "\n".join("" if line.startswith("#") else line for _, line in lines_of(text))
    for pattern in (FROM_CODE, CODE):
        text = pattern.sub(lambda left_out: "\n" * left_out[0].count("\n"), text)
    found = []
    for phrase, instead in WORDS.items():
        for match in re.finditer(phrase.replace(" ", r"\s+"), text, re.IGNORECASE):
            line = text.count("\n", 0, match.start()) + 1
            found.append(f"{line}: {' '.join(match[0].split())!r}: write {instead}")
    return found


@over("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    assert dead_links(REPOSITORY / page) == []


def decision(name: str, text: str) -> str:
    """The row of the index for a decision record; empty if the page does not have the form of one."""
    found = DECISION.fullmatch(text)
    if found is None or not name.startswith(f"{int(found['number']):04}-"):
        return ""
    return f"| {found['number']} | [{found['title']}]({name}) | {found['status']} | {found['date']} |"


def test_decisions_have_the_form_and_are_in_the_index() -> None:
    folder = (REPOSITORY / DECISIONS).parent
    rows = {path.name: decision(path.name, path.read_text()) for path in sorted(folder.glob("[0-9]*.md"))}
    assert [name for name, row in rows.items() if not row] == []
    assert [name[:4] for name in rows] == [f"{number:04}" for number in range(1, len(rows) + 1)]
    index = (REPOSITORY / DECISIONS).read_text()
    assert re.findall(r"^\| \d.*$", index, re.MULTILINE) == list(rows.values())


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= README_LINES_MAX


@over("page", [page for page in pages() if page not in GENERATED])
def test_prose_is_not_too_wide(page: str) -> None:
    assert wide_lines((REPOSITORY / page).read_text()) == []


@over("page", [page for page in pages() if not page.startswith(RECORDS)])
def test_words_mean_what_they_say(page: str) -> None:
    assert wrong_words((REPOSITORY / page).read_text()) == []


def test_generated_pages_say_what_writes_them() -> None:
    for page, reason in GENERATED.items():
        assert reason.removeprefix("written by ") in (REPOSITORY / page).read_text()

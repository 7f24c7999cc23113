"""The Markdown pages: links within the repository lead somewhere, and the README stays short."""

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
README_LINES_MAX = 120
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]^]+\]: (\S+)", re.MULTILINE)
HEADING = re.compile(r"^#{1,6} (.+?)\s*$", re.MULTILINE)
ANCHOR = re.compile(r'<a id="([^"]+)">')


def pages() -> list[str]:
    """The repository's Markdown files."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", "*.md"],
        cwd=REPOSITORY, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return listed.stdout.split()


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


@pytest.mark.parametrize("page", pages())
def test_links_lead_somewhere(page: str) -> None:
    assert dead_links(REPOSITORY / page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A `word`, and more\n# Twice\n# Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[1](other.md) [2](other.md#a-word-and-more) [3](other.md#twice-1) [4](#here) [5](https://example.com)\n"
        "`[6](code.md)`\n```\n[7](code.md)\n```\n[8](gone.md) [9](other.md#gone) [10](#gone)\n\n[^1]: [11](gone-2.md)\n"
    )
    assert dead_links(page) == ["gone.md", "other.md#gone", "#gone", "gone-2.md"]


def test_the_readme_is_short() -> None:
    assert len((REPOSITORY / "README.md").read_text().splitlines()) <= README_LINES_MAX

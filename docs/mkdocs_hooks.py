"""MkDocs hooks that build a site from the repository's unchanged Markdown pages (`./run docs`).

The pages link to each other, and to source files, by paths in the repository. So every tracked page is part of the site
under its path in the repository. A link to anything else in the repository leads to the repository on the web.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

REPOSITORY = Path(__file__).parents[1]
HOME = "README.md"
CONTENTS = "docs/README.md"
DECISIONS = "docs/adr/README.md"
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
SECTION = re.compile(r"^\*\*(.+?)\*\*\n(.*?)\n$", re.MULTILINE | re.DOTALL)


def tracked(*patterns: str) -> list[str]:
    """Return the repository's files, including files that are not committed yet."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *patterns]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    return sorted(name for name in set(done.stdout.split("\0")) if name and (REPOSITORY / name).is_file())


def pages() -> list[str]:
    """Return the Markdown files that are pages of the site."""
    return [name for name in tracked("*.md") if not name.startswith(".github/")]


def resolved(page: str, link: str) -> str:
    """Return the path in the repository that a link of a page names."""
    return os.path.normpath(os.path.join(os.path.dirname(page), link))  # noqa: PTH118, PTH120 not of this system


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading, as GitHub makes it."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)


def contents() -> list[dict[str, Any]]:
    """Return the navigation: the questions of docs/README.md, each with the pages named below it, every page once.

    The index of the decision records brings the records with it.
    """
    known = pages()
    seen = {HOME, CONTENTS}
    navigation: list[dict[str, Any]] = [{"feedmux": HOME}, {"All pages": CONTENTS}]
    for question, text in SECTION.findall((REPOSITORY / CONTENTS).read_text() + "\n"):
        section: list[Any] = []
        for link, _ in LINK.findall(text):
            target = resolved(CONTENTS, link)
            if target in known and target not in seen:
                seen.add(target)
                records = [each for each in known if target == DECISIONS and each.startswith("docs/adr/0")]
                section.append({"Decisions": [target, *records]} if records else target)
        navigation.append({question: section})
    return navigation


def on_config(config: Any) -> Any:
    """Set what the configuration file cannot express."""
    config.nav = contents()
    config.mdx_configs["toc"]["slugify"] = slug
    return config


def on_files(files: Files, config: Any) -> Files:
    """Replace the files of `docs_dir` with the pages and their pictures."""
    theme = [file for file in files if file.src_dir != config.docs_dir]
    ours = [File(name, str(REPOSITORY), config.site_dir, False) for name in pages() + tracked("docs/images")]
    return Files(theme + ours)


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Change links to files that are not pages into links to the repository on the web."""
    name = page.file.src_uri
    known = {*pages(), *tracked("docs/images")}

    def link(found: re.Match[str]) -> str:
        target = resolved(name, found[1])
        place = REPOSITORY / target
        if re.match(r"[a-z]+:", found[1]) or target in known or not place.exists():
            return found[0]
        return f"{config.extra['repository']}/{'tree' if place.is_dir() else 'blob'}/main/{target}{found[2] or ''}"

    parts = FENCE.split(markdown)
    parts[::2] = (LINK.sub(link, part) for part in parts[::2])
    return "".join(parts)

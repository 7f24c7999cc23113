"""The documentation site: `./run docs` builds it without a warning, and each page of docs/README.md is in its menu."""

import json
import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.started import ran

REPOSITORY: Final = Path(__file__).parents[2]
TIMEOUT_S: Final = 280.0

pytestmark = pytest.mark.full


def docs(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """`./run docs`. Skips where its packages cannot be installed."""
    done = ran(REPOSITORY / "run", "docs", *arguments, cwd=REPOSITORY, stderr=subprocess.STDOUT, timeout_s=TIMEOUT_S)
    if "the installation failed" in done.stdout:
        pytest.skip(f"MkDocs cannot be installed: {done.stdout}")
    return done


def test_the_site_builds(tmp_path: Path) -> None:
    done = docs("--site-dir", tmp_path / "site")
    assert done.returncode == 0, done.stdout
    home = (tmp_path / "site" / "index.html").read_text()
    listed = re.findall(r"\]\((\S+\.md)\)", (REPOSITORY / "docs" / "README.md").read_text())
    assert listed
    for link in listed:
        page = (REPOSITORY / "docs" / link).resolve().relative_to(REPOSITORY).with_suffix(".html")
        if page.as_posix() != "README.html":
            assert f'href="{str(page).replace("README.html", "index.html")}"' in home, page
    indexed = json.loads((tmp_path / "site" / "search" / "search_index.json").read_text())
    assert any("heartbeat" in entry["text"].lower() for entry in indexed["docs"])
    # Nothing is fetched from other hosts.
    assert not re.findall(r'<(?:script|img)[^>]* src="https?://|<link rel="(?:stylesheet|preconnect)" href="http', home)

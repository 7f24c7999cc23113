"""Subjects of commits have the form that CONTRIBUTING.md describes."""

import re
import subprocess
from typing import Final

import pytest

from tests.checks.test_docs import REPOSITORY

LAST_BEFORE: Final = "650211707c"
"""The last commit before the rule."""
SUBJECT: Final = re.compile(r"(?=.{1,72}$)[a-z/]+(?:, [a-z/]+)*: \S.*")


def git(*arguments: str) -> str:
    """What git prints; empty where it fails."""
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout


def test_subjects_have_the_form() -> None:
    if not git("cat-file", "-t", f"{LAST_BEFORE}^{{commit}}"):
        pytest.skip(f"this clone has no history, or a shallow one: it lacks the commit {LAST_BEFORE}")
    subjects = git("log", "--no-merges", "--format=%h %s", f"{LAST_BEFORE}..HEAD").splitlines()
    assert [each for each in subjects if not SUBJECT.fullmatch(each.partition(" ")[2])] == []

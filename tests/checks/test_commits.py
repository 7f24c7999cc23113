"""Subjects of commits have the form that CONTRIBUTING.md describes."""

import re
import subprocess
from typing import Final

import pytest

from tests.checks.test_docs import REPOSITORY
from tests.tables import over

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


@over(
    ("subject", "expected"),
    [
        ("server: Reject a pipeline with $out", True),
        ("docs, tests: Write again instead of anew", True),
        (f"docs: {'x' * 66}", True),
        (f"docs: {'x' * 67}", False),
        ("Reject a pipeline with $out", False),
        ("Test: a server resumes", False),
        ("docs:", False),
    ],
)
def test_a_subject_without_the_form_is_found(subject: str, expected: bool) -> None:
    assert (SUBJECT.fullmatch(subject) is not None) == expected

"""Servers that a run names: the tests show something of these, or say that they do not."""

import os
import sys

import pytest

from feedmux_embedded import ReplicaSet
from tests.integration.servers import REPOSITORY
from tests.started import ran

OF_ITS_OWN = "tests/integration/test_embedded.py::test_mongod_that_does_not_start_says_why"


def run(variable: str, value: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--no-fold-skipped", OF_ITS_OWN]
    done = ran(*command, cwd=REPOSITORY, env=os.environ | {variable: value})
    return done.stdout + done.stderr


def test_a_test_that_starts_a_mongodb_is_skipped_by_name_beside_one_that_runs(mongo: ReplicaSet) -> None:
    says = run("FEEDMUX_TEST_MONGODB_URI", mongo.uri)
    assert f"SKIPPED {OF_ITS_OWN} - Skipped: needs a MongoDB of its own" in says
    assert "1 skipped in" in says


@pytest.mark.parametrize(
    ("variable", "value", "complaint"),
    [
        ("FEEDMUX_MONGOD", "/bin/echo", "--mongod /bin/echo is not that program"),
        ("FEEDMUX_REDIS_SERVER", "/no/redis", "--redis-server /no/redis does not run"),
        ("FEEDMUX_TEST_MONGODB_URI", "mongodb://127.0.0.1:1/?serverSelectionTimeoutMS=1", "--mongodb-uri: 127.0.0.1:1"),
    ],
)
def test_what_is_no_such_server_is_an_error_before_the_first_test(variable: str, value: str, complaint: str) -> None:
    says = run(variable, value)
    assert f"ERROR: {complaint}" in says

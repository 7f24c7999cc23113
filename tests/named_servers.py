"""Checks the servers that `./run test` was told to use, before any test starts one of them and fails."""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from feedmux_embedded.mongod_binary import library_env
from feedmux_embedded.process import EmbeddedError
from feedmux_server.core.check_result import failures
from tests.started import ran

_PROGRAMS = {
    "FEEDMUX_MONGOD": ("--mongod", ("db version ",)),
    "FEEDMUX_REDIS_SERVER": ("--redis-server", ("Redis server ", "Valkey server ")),
}
"""By variable: the option of `./run test`, and how the output of the program's --version begins."""


def complaint(environment: Mapping[str, str] = os.environ) -> str:
    """Return what is wrong with the servers that the environment names; empty if nothing is."""
    for variable, (option, beginnings) in _PROGRAMS.items():
        if path := environment.get(variable):
            try:
                says = _version(Path(path), is_mongod=option == "--mongod")
            except (OSError, EmbeddedError, subprocess.TimeoutExpired) as error:
                return f"{option} {path} does not run: {error}"
            if not says.startswith(beginnings):
                return f"{option} {path} is not that program: its --version prints {says[:80].rstrip()!r}"
    uri = environment.get("FEEDMUX_TEST_MONGODB_URI")
    return f"--mongodb-uri: {wrong}" if uri and (wrong := _wrong(uri)) else ""


def _version(path: Path, *, is_mongod: bool) -> str:
    with tempfile.TemporaryDirectory() as folder:
        libraries = library_env(path, Path(folder)) if is_mongod else {}
        done = ran(path, "--version", env=os.environ | libraries, timeout_s=60)
    return done.stdout or done.stderr


def _wrong(uri: str) -> str:
    try:
        with MongoClient[dict[str, Any]](uri, serverSelectionTimeoutMS=10_000) as client:
            # Not above: beside the oldest packages that the clients work with, the server cannot be imported.
            from feedmux_server.source.checks import judge_hello

            admin = client.admin
            return "; ".join(map(str, failures(judge_hello("it", admin.command("hello"), admin.command("buildInfo")))))
    except PyMongoError as error:
        return str(error).partition(" (configured timeouts")[0]

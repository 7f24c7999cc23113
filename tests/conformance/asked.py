"""What feedmux asked of MongoDB, by MongoDB's own log. (Its profiler leaves out the aggregates of change streams.)"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bson import json_util
from pymongo import MongoClient
from pymongo.database import Database

from tests.conformance.conftest import Document


@dataclass(frozen=True, slots=True)
class Asked:
    """feedmux's commands on one database. It is the caller's own, or its feeds have a comment."""

    client: MongoClient[Document]
    database: str
    comment: Any = None

    def commands(self, name: str, *, refused: bool = False) -> list[Document]:
        """All `aggregate` or `getMore` commands so far that succeeded (or that MongoDB refused), oldest first, as far
        as the log goes back."""
        found = []
        for line in self.client.admin.command("getLog", "global")["log"]:
            if '"appName":"feedmux"' not in line or f'"{name}":' not in line:
                continue
            facts = json_util.loads(line)["attr"]
            command = facts.get("command", {})
            if name not in command or command["$db"] != self.database or ("errCode" in facts) != refused:
                continue
            if self.comment is None or command.get("comment") == self.comment:
                found.append(command)
        return found

    @property
    def aggregates(self) -> list[Document]:
        return self.commands("aggregate")

    @property
    def get_mores(self) -> list[Document]:
        return self.commands("getMore")

    @property
    def stages(self) -> list[Document]:
        """The `$changeStream` stages."""
        return [command["pipeline"][0]["$changeStream"] for command in self.aggregates]


@contextmanager
def logged(database: Database[Document], comment: Any = None) -> Iterator[Asked]:
    """MongoDB logs every command meanwhile."""
    client = database.client
    client.admin.command("profile", 0, slowms=-1)
    try:
        yield Asked(client, database.name, comment)
    finally:
        client.admin.command("profile", 0, slowms=100)

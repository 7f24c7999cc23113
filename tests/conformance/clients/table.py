"""The table of scenarios and clients (`docs/client-conformance.md`).

`python -m tests.conformance.clients.table` writes it; with `--check` it compares, and exits with 1 on a difference.
"""

import sys
from collections.abc import Sequence
from itertools import groupby

from tests.conformance.clients.runners import LANGUAGES, REPOSITORY
from tests.conformance.clients.scenario import FOLDER, Scenario, scenarios
from tests.written import Written

COMMAND = "python -m tests.conformance.clients.table"
TABLE = REPOSITORY / "docs" / "client-conformance.md"

_HEAD = """\
# Conformance of the clients

The same scenarios are played for each client: against a real server on a real MongoDB and Redis, through a network
that is cut, slowed and refused, and where a real server cannot misbehave enough, against a scripted one. A mark says
that the scenario is part of that client's tests, which pass only if the client does what the scenario says; a dash
says that the client has no such calls yet. [How it works](../tests/conformance/clients/README.md). Written by
`python -m tests.conformance.clients.table`.
"""


def table(found: Sequence[Scenario]) -> str:
    """The Markdown of the table."""
    clients = [each for each in LANGUAGES.values() if each.present]
    lines = [_HEAD]
    for group, members in groupby(found, key=lambda each: each.group):
        link = f"../{(FOLDER / f'{group}.yaml').relative_to(REPOSITORY)}"
        lines += [f"## [{group.replace('_', ' ').capitalize()}]({link})", ""]
        lines += [f"| scenario | what a client does | {' | '.join(each.title for each in clients)} |"]
        lines += [f"|---|---|{':-:|' * len(clients)}"]
        for each in members:
            cases = f" ({len(each.cases)} cases)" if len(each.cases) > 1 else ""
            marks = " | ".join("✓" if each.is_of(client.name) else "–" for client in clients)
            lines.append(f"| {each.name.replace('-', ' ')}{cases} | {each.shows} | {marks} |")
        lines.append("")
    count = sum(len(each.cases) for each in found)
    lines.append(f"{len(found)} scenarios with {count} cases, {len(clients)} client{'s'[: len(clients) - 1]}.")
    return "\n".join(lines) + "\n"


WRITTEN = Written(COMMAND, {TABLE: lambda: table(scenarios())})


if __name__ == "__main__":
    sys.exit(WRITTEN.main(sys.argv[1:]))

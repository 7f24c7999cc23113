"""The commands and programs on the pages: which test runs them, and why some are run by none.

tests/checks/test_pages.py compares the two tables with the pages.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

REPOSITORY: Final = Path(__file__).parents[2]
SHOWN: Final = frozenset({"", "json", "mermaid", "text"})
"""The languages of what is shown, and not run: figures, output, forms."""
_FENCE: Final = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)

_QUICKSTART: Final = "tests/cli/test_quickstarts.py::test_the_page"
_FIRST_STEPS: Final = "tests/cli/test_quickstarts.py::test_the_first_steps"
_PYMONGO: Final = "tests/conformance/test_pymongo_page.py::test_the_examples"
RUN: Final = {
    "README.md": {"sh": _FIRST_STEPS, "python": _FIRST_STEPS},
    "clients/go/feedmux/README.md": {"go": "tests/clients/test_go.py::test_the_example_goes_on_where_it_stopped"},
    "clients/java/README.md": {"java": "tests/clients/test_java.py::test_the_example_goes_on_where_it_stopped"},
    "clients/node/README.md": {"js": "tests/clients/test_node.py::test_the_example_goes_on_where_it_stopped"},
    "clients/python/PYPI.md": {"sh": _FIRST_STEPS, "python": _FIRST_STEPS},
    "clients/python/README.md": {"python": "tests/cli/test_quickstarts.py::test_the_examples_of_the_python_client"},
    "docs/grants.md": dict.fromkeys(("yaml", "js", "sh", "python"), "tests/cli/test_grants_guide.py::test_the_guide"),
    "docs/groups.md": dict.fromkeys(("python", "sh"), "tests/cli/test_groups_guide.py::test_the_guide"),
    "docs/install.md": {"sh": "tests/cli/test_operations_guide.py::test_the_server_is_installed"},
    "docs/operations.md": dict.fromkeys(
        ("js", "toml", "sh"), "tests/cli/test_operations_guide.py::test_the_guides_commands"
    ),
    "docs/protocol.md": {"sh": "tests/integration/test_protocol_page.py::test_the_commands"},
    "docs/pymongo-compatibility.md": {"python": _PYMONGO},
    "docs/quickstart/go.md": dict.fromkeys(("sh", "go"), _QUICKSTART),
    "docs/quickstart/grpc.md": {"sh": _QUICKSTART},
    "docs/quickstart/java.md": dict.fromkeys(("sh", "java"), _QUICKSTART),
    "docs/quickstart/node.md": dict.fromkeys(("sh", "js"), _QUICKSTART),
    "docs/quickstart/python.md": dict.fromkeys(("sh", "python"), _QUICKSTART),
    "docs/quickstart/spark.md": dict.fromkeys(("sh", "python"), _QUICKSTART),
    "docs/redis.md": {
        "toml": "tests/cli/test_operations_guide.py::test_the_examples_are_configurations",
        "redis": "tests/integration/test_redis_topologies.py::acl_rules",
    },
    "docs/replicas.md": {
        "sh": "tests/cli/test_operations_guide.py::test_the_route_can_be_computed",
        "yaml": "tests/cli/test_operations_guide.py::test_the_proxies_are_configured_for_the_route_and_the_ports",
    },
    "docs/runbook.md": {"sh": "tests/cli/test_operations_guide.py::test_the_guides_commands"},
    "docs/snapshot.md": {"sh": "tests/cli/test_consume.py::test_existing_documents_first"},
    "docs/telemetry.md": {
        "js": "tests/integration/test_history_at_risk.py::test_an_oplog_that_may_not_be_read_is_said_once"
    },
    "docs/tenants.md": {
        "yaml": "tests/cli/test_tenants_guide.py::test_the_example_is_a_tenants_file",
        "sh": "tests/cli/test_tenants_guide.py::test_the_commands_do_what_it_says",
        "toml": "tests/cli/test_tenants_guide.py::test_the_jwt_section_is_a_configuration",
    },
    "spark_connector/README.md": {"python": "tests/spark/test_readme.py::test_its_examples_run"},
}
"""The test that runs the blocks of a language on a page, apart from those in NOT_RUN."""

_PUBLISHED: Final = "works when the package is published; tests/packaging installs the one that is built here"
_OWN_TESTS: Final = "runs the tests; a test would run itself"
_FRAGMENT: Final = "a part of a program, with names that the page does not define"
NOT_RUN: Final = {
    "docs/snapshot.md": {
        "client.create_subscription": "tests/integration/test_snapshot.py makes this call",
        "def noticed": "tests/integration/test_copy_again.py has a sink that does this",
    },
    "CONTRIBUTING.md": {"./run lint": _OWN_TESTS, "./run test": _OWN_TESTS},
    "README.md": {
        "./run demo": "installs; test_quickstarts starts the servers, tests/integration/test_demo.py the demo"
    },
    "bench/README.md": {"./run bench list": "takes hours; tests/integration/test_bench.py runs each benchmark, small"},
    "clients/go/feedmux/README.md": {
        "go get": _PUBLISHED,
        "go mod edit": "the quickstart for Go has the same commands, and a module for them",
        "./run dev": "tests/clients/test_go.py builds and runs the example",
        "switch {": _FRAGMENT,
        "go test": "tests/clients/test_go.py and test_bench.py run the same tools",
    },
    "clients/java/README.md": {
        "<dependency>": _PUBLISHED,
        "mvn -q": "writes to the user's Maven repository; tests/clients/test_java.py builds the same",
        "cd clients/java": "tests/clients/test_java.py builds and runs the example",
        "try (Session": _FRAGMENT,
        "FeedmuxClient.builder": _FRAGMENT,
    },
    "clients/node/README.md": {
        "npm install": _PUBLISHED,
        "(cd ../feedmux": "the quickstart for Node.js has the same commands, and a package for them",
        "npm ci": "tests/clients/test_node.py builds and runs the example",
    },
    "clients/python/PYPI.md": {
        "pip install": _PUBLISHED,
        "feedmux dev": "ends with Ctrl-C only; test_quickstarts starts the same server",
    },
    "clients/python/README.md": {"pip install": _PUBLISHED, "./run test": _OWN_TESTS},
    "docs/groups.md": {
        "feedmux dead-letters list orders ": "needs letters; tests/cli/test_dead_letters.py gives these commands"
    },
    "docs/install.md": {
        "pip install": "changes the environment of the tests; tests/packaging installs the wheel",
        "docker compose": "needs Docker; tests/cli/test_compose.py runs the services without containers",
    },
    "docs/redis.md": {"CONFIG SET": "configures Redis alone; feedmux is not concerned"},
    "docs/releasing.md": {
        "./run release": "changes the versions in the checkout; tests/packaging/test_release.py does so in a copy",
        "docker build": "publishes",
    },
    "docs/telemetry.md": {"export OTEL": "needs a collector; tests/integration/test_tracing.py has one"},
    "docs/testing.md": {"./run sim": "takes hours; tests/sim runs fewer seeds"},
    "helm/feedmux/README.md": {
        "kubectl create": "needs Kubernetes; tests/helm renders the chart",
        "rules:": "values of another chart",
    },
    "spark_connector/README.md": {
        "pip install": _PUBLISHED,
        "CREATE TABLE": "names a file and a database; tests/spark/test_sql.py makes and reads such a table",
    },
    "spark_connector/docs/rows.md": {
        "from pyspark.sql.types": _FRAGMENT,
        "from pyspark.sql import": _FRAGMENT,
        "MERGE INTO": "needs a table format with MERGE; tests/spark/test_apply_delta.py merges with Delta Lake",
        "from feedmux_spark.apply": "tests/spark/test_apply.py uses the mirror; the page leaves out the copy",
    },
    "tests/conformance/clients/README.md": {
        "python -m": _OWN_TESTS,
        "acks-are-cumulative:": "shows the form of the scenario of that name, which all clients play",
    },
}
"""Why no test runs a block, by the beginning of its first line."""


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    text: str

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0]


def fenced(text: str) -> list[Block]:
    """All fenced blocks of a page, in their order."""
    return [Block(language, textwrap.dedent(block)) for _, language, block in _FENCE.findall(text)]


def reason(page: str, block: Block) -> str:
    """Why no test runs this block; empty if one does."""
    reasons = NOT_RUN.get(page, {})
    return next((reasons[beginning] for beginning in reasons if block.text.startswith(beginning)), "")


def blocks(page: str, language: str) -> Iterator[str]:
    """The blocks of a language that a test is to run, in their order."""
    for block in fenced((REPOSITORY / page).read_text()):
        if block.language == language and not reason(page, block):
            yield block.text

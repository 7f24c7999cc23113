"""Each module has a unit test under its name, in the folder that mirrors its package, or a reason."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
UNIT: Final = REPOSITORY / "tests/unit"
MIRRORED: Final = {
    "server/feedmux_server": "",
    "server/feedmux_embedded": "embedded",
    "clients/python/feedmux": "client",
    "spark_connector/feedmux_spark": "spark",
}
"""Packages, and their folders in `tests/unit`."""
OTHER_CODE: Final = "proto/"
"""The folder of unit tests of what is no Python module."""
PROCESSES: Final = "starts processes, and consists of that"
DECLARATIONS: Final = "declares types without behaviour"
PASSES_ON: Final = "passes its arguments on to `api.py`, and consists of that"
SPARK: Final = "needs a running Spark"
HALF: Final = "half of a connection, which needs the other half"
GROUPS: Final = "several sessions act on one subscription"
MONGODB: Final = "only a real MongoDB shows what it stores and finds"
ELSEWHERE: Final = {
    "feedmux/async_client.py": ("tests/unit/client/test_sync_and_async.py", PASSES_ON),
    "feedmux/cli/doctor_client.py": ("tests/cli/test_doctor.py", "asks a real server"),
    "feedmux/cli/drain.py": ("tests/cli/test_operator_commands.py", "sends one call, and prints its answer"),
    "feedmux/cli/group_arguments.py": ("tests/unit/client/cli/test_subscriptions.py", "options of those commands"),
    "feedmux/cli/reachability.py": ("tests/cli/test_reachability.py", "connects to real servers and proxies"),
    "feedmux/cli/signals.py": ("tests/unit/client/cli/test_consume.py", "the end of that command"),
    "feedmux/client.py": ("tests/unit/client/test_sync_and_async.py", PASSES_ON),
    "feedmux/member_connection.py": ("tests/unit/client/test_async_member.py", HALF),
    "feedmux/notices.py": ("tests/unit/client/test_responses.py", DECLARATIONS),
    "feedmux/session_buffer.py": ("tests/unit/client/test_session_base.py", DECLARATIONS),
    "feedmux/stream_keeper.py": ("tests/unit/client/test_connection.py", HALF),
    "feedmux_embedded/mongod.py": ("tests/integration/test_embedded.py", PROCESSES),
    "feedmux_embedded/mongod_binary.py": ("tests/integration/test_embedded.py", "makes a program run on this machine"),
    "feedmux_embedded/ports.py": ("tests/integration/test_embedded.py", "asks the operating system for ports"),
    "feedmux_embedded/process.py": ("tests/integration/test_embedded.py", PROCESSES),
    "feedmux_embedded/redis_server.py": ("tests/integration/test_embedded.py", PROCESSES),
    "feedmux_embedded/workdir.py": ("tests/integration/test_embedded.py", "sweeps the folders of killed processes"),
    "feedmux_server/app.py": ("tests/integration/test_start.py", "connects to real servers and listens"),
    "feedmux_server/cli/dev.py": ("tests/cli/test_serve_and_dev.py", PROCESSES),
    "feedmux_server/cli/doctor.py": ("tests/cli/test_doctor.py", "prints the checks of real servers"),
    "feedmux_server/cli/serve.py": ("tests/cli/test_serve_and_dev.py", "runs a server until a signal"),
    "feedmux_server/config/errors.py": ("tests/unit/config/test_load.py", DECLARATIONS),
    "feedmux_server/core/delivery/group_reader.py": ("tests/unit/rpc/test_join.py", GROUPS),
    "feedmux_server/core/delivery/taken.py": ("tests/unit/core/delivery/test_subscriber.py", DECLARATIONS),
    "feedmux_server/core/grants/hidden.py": (
        "tests/integration/test_grants.py", "makes expressions that only MongoDB evaluates",
    ),
    "feedmux_server/core/positions/join_point.py": ("tests/unit/core/delivery/test_feed_streams.py", DECLARATIONS),
    "feedmux_server/core/positions/start.py": ("tests/unit/streams/test_resolve_start.py", DECLARATIONS),
    "feedmux_server/health_probe.py": ("tests/integration/test_health.py", "a program that asks a real server"),
    "feedmux_server/jobs/monitor_results.py": ("tests/unit/jobs/test_metrics_collector.py", DECLARATIONS),
    "feedmux_server/rpc/dead_letters.py": ("tests/integration/test_dead_letters.py", MONGODB),
    "feedmux_server/sessions/groups.py": ("tests/unit/rpc/test_join.py", GROUPS),
    "feedmux_server/sessions/member_session.py": ("tests/unit/rpc/test_join.py", GROUPS),
    "feedmux_server/sessions/outputs.py": ("tests/unit/rpc/test_response_encoder.py", DECLARATIONS),
    "feedmux_server/source/dead_letters.py": ("tests/integration/test_letters.py", MONGODB),
    "feedmux_server/source/letters.py": ("tests/integration/test_letters.py", MONGODB),
    "feedmux_server/source/read_limits.py": ("tests/unit/source/test_read_pace.py", DECLARATIONS),
    "feedmux_server/telemetry/otel_setup.py": ("tests/integration/test_otlp_down.py", "runs the threads of exporters"),
    "feedmux_server/workers/side_process.py": ("tests/integration/test_side_process.py", PROCESSES),
    "feedmux_server/workers/side_worker.py": ("tests/integration/test_side_process.py", "runs in such a process"),
    "feedmux_spark/apply/delta.py": ("tests/spark/test_apply_delta.py", SPARK),
    "feedmux_spark/apply/evolution.py": ("tests/spark/test_apply.py", SPARK),
    "feedmux_spark/rows/errors.py": ("tests/unit/spark/rows/test_maker.py", DECLARATIONS),
}  # fmt: skip
"""Modules that no unit test can test: the file that does, and why."""
ACROSS: Final = {
    "client/test_names.py": "the names that the package exports",
    "client/test_sync_and_async.py": "both interfaces have the same methods",
    "core/delivery/test_counted_sizes.py": "what is counted for an object is the memory that it takes",
    "core/delivery/test_key_letters.py": "the part of the ledger that delivers dead letters again",
    "core/feeds/test_pipelines_page.py": "docs/pipelines.md lists what the code allows",
    "core/positions/test_long_tokens.py": "positions of events with a large `_id`, from the token to the subscriber",
    "core/positions/test_token_versions.py": "positions of one token version in a stream of the other",
    "spark/rows/test_documented.py": "spark_connector/docs/rows.md has the columns and types of the code",
    "streams/test_costs.py": "the work for one feed does not grow with the number of others",
    "telemetry/test_alerts.py": "the files of the alerts and of the dashboard",
    "telemetry/test_alerts_fire.py": "the alerts on an invented day",
}
"""Unit tests of what no single module does."""


def modules() -> Iterator[tuple[str, str]]:
    """Each module by its path from the package on, and its test below `tests/unit`. Generated code has no tests."""
    for package, folder in MIRRORED.items():
        root = REPOSITORY / package
        for path in sorted(root.rglob("*.py")):
            if path.name not in ("__init__.py", "__main__.py") and not path.stem.endswith(("_pb2", "_pb2_grpc")):
                test = Path(folder, path.relative_to(root)).with_name(f"test_{path.name}")
                yield path.relative_to(root.parent).as_posix(), test.as_posix()


def unit_tests() -> set[str]:
    found = (path.relative_to(UNIT).as_posix() for path in UNIT.rglob("test_*.py"))
    return {name for name in found if not name.startswith(OTHER_CODE)}


def test_each_module_has_a_unit_test_or_a_reason() -> None:
    there = unit_tests()
    assert sorted(module for module, test in modules() if test not in there) == sorted(ELSEWHERE)


def test_each_unit_test_has_a_module_or_a_reason() -> None:
    assert sorted(unit_tests() - {test for _, test in modules()}) == sorted(ACROSS)


def test_the_files_that_test_the_others_exist() -> None:
    assert [test for test, _ in ELSEWHERE.values() if not (REPOSITORY / test).is_file()] == []

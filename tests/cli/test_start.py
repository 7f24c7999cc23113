"""What a command imports before it starts its work: help and commands without a connection must start at once."""

import subprocess
import sys
from pathlib import Path

import pytest

from feedmux.cli import COMMANDS
from tests.cli.conftest import clean_environment

SLOW = {"grpc", "google.protobuf", "pymongo", "redis", "uvloop", "opentelemetry", "cryptography"}
"""Packages whose import takes longer than Python's own start."""
OF_THE_SERVER = {"grpc_health", "grpc_reflection", "grpc_status", "pydantic", "pydantic_settings", "yaml"}
"""Packages that a client's installation does not have."""
TOKEN = "826B02F300000000142B022C0100296E5A1004EA02D58C08674336B7BFF28A972584B2461E5F6964002B0E0004"
ENDED = """
import sys
from feedmux.cli import main
try:
    assert main(sys.argv[1:]) == 0
except SystemExit as end:
    assert end.code == 0, end.code
print("imported:", *sys.modules)
"""


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["--help"], ["keys", "new"], ["token", "decode", TOKEN], ["serve", "--print-sample-config"]]
    + [[command, "--help"] for command in COMMANDS],
    ids=" ".join,
)
def test_no_slow_package_is_imported_and_by_clients_none_of_the_server(arguments: list[str]) -> None:
    unwanted = SLOW if arguments[0] in ("serve", "dev", "tenants") else SLOW | OF_THE_SERVER
    assert unwanted.intersection(imported_by(arguments)) == set()


def test_a_tenants_file_is_checked_without_slow_packages(tmp_path: Path) -> None:
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(f'tenants:\n  - name: shop\n    api_key_hashes: ["{"1" * 64}"]\n')
    assert SLOW.intersection(imported_by(["tenants", "check", str(tenants)])) == set()


def imported_by(arguments: list[str]) -> list[str]:
    """Modules that a command has imported when it has succeeded."""
    command = [sys.executable, "-c", ENDED, *arguments]
    output = subprocess.check_output(command, env=clean_environment(), stdin=subprocess.DEVNULL, text=True)
    imported = output.splitlines()[-1].split()[1:]
    assert "feedmux.cli" in imported
    return imported

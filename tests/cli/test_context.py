"""`feedmux context` with a real server: a command needs no options."""

from pathlib import Path

from tests.cli.conftest import Site, clean_environment, run


def test_a_command_with_a_context_alone(site: Site, tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    saved = run("context", "save", "site", "--environment", "--use", environment=site.environment | environment)
    assert saved.returncode == 0, saved.stderr
    for command in (["subscriptions", "list"], ["streams"], ["doctor"]):
        done = run(*command, environment=clean_environment() | environment)
        assert done.returncode == 0, done.stderr + done.stdout

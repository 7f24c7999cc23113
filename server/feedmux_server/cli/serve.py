"""`feedmux serve`: runs the server, configured by a file and environment variables."""

import argparse
import os
import sys
from pathlib import Path

from feedmux.cli.failure import CliError
from feedmux.cli.terminal import Painted, say
from feedmux_server.config.errors import ConfigError
from feedmux_server.config.load import load_config
from feedmux_server.config.sample import describe_options, sample_config


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", metavar="FILE", type=Path, help="configuration file, TOML or YAML (FEEDMUX_CONFIG)")
    parser.add_argument(
        "--insecure-no-auth",
        action="store_true",
        help="require no authentication; without it the server needs a tenants_file",
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="log level; overrides log.level"
    )
    parser.add_argument(
        "--print-sample-config", action="store_true", help="print a commented configuration file and exit"
    )
    parser.epilog = (
        "Every option can be set in the file, or in the environment as FEEDMUX_ with __ between the levels\n"
        "(FEEDMUX_SOURCES__MAIN__URI, FEEDMUX_REDIS__URL); the environment takes precedence.\n\n"
        f"{describe_options()}\n\n"
        "Tenants file: docs/tenants.md; `feedmux keys new` prints an entry, `feedmux tenants check FILE` checks it."
    ).replace("%", "%%")


def run(args: argparse.Namespace) -> int:
    if args.print_sample_config:
        say(Painted(sample_config()), end="")
        return 0
    named = args.config or os.environ.get("FEEDMUX_CONFIG")
    path = Path(named) if named else None
    if path is None and not any(name.upper().startswith("FEEDMUX_SOURCES") for name in os.environ):
        raise CliError(
            "no MongoDB is configured",
            "Write a file (feedmux serve --print-sample-config > feedmux.toml) and pass it with --config, or set"
            " FEEDMUX_SOURCES__MAIN__URI.",
        )
    from feedmux_server.app import CannotStart, serve
    from feedmux_server.telemetry import log

    try:
        config = load_config(path)
        log.configure(args.log_level or config.log.level, config.log.format)
        serve(config, insecure_no_auth=args.insecure_no_auth)
    except (ConfigError, CannotStart) as error:
        raise CliError(str(error)) from None
    sys.stderr.flush()
    return 0

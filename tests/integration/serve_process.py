"""`python -m tests.integration.serve_process CONFIG.json`: a server to be killed. Logs to standard error. GATHER_S of
the environment is that of `sessions/groups.py`, which servers of former releases do not have."""

import json
import os
import sys
from importlib import import_module
from pathlib import Path

from feedmux_server.app import CannotStart, serve
from feedmux_server.config.server import Config
from feedmux_server.telemetry.log import configure

if __name__ == "__main__":
    configuration = json.loads(Path(sys.argv[1]).read_text())
    configure("debug", "json")
    if seconds := os.environ.get("GATHER_S"):
        vars(import_module("feedmux_server.sessions.groups"))["GATHER_S"] = float(seconds)
    try:
        serve(Config(**configuration), insecure_no_auth="tenants_file" not in configuration)
    except CannotStart as error:
        sys.exit(f"feedmux cannot start: {error}")

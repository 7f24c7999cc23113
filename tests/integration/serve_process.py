"""`python -m tests.integration.serve_process CONFIG.json`: a server to be killed. Logs to standard error."""

import json
import sys
from pathlib import Path

from feedmux_server.app import CannotStart, serve
from feedmux_server.config.server import Config
from feedmux_server.telemetry.log import configure

if __name__ == "__main__":
    configuration = json.loads(Path(sys.argv[1]).read_text())
    configure("debug", "json")
    try:
        serve(Config(**configuration), insecure_no_auth="tenants_file" not in configuration)
    except CannotStart as error:
        sys.exit(f"feedmux cannot start: {error}")

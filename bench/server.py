"""`python -m bench.server CONFIG.json`: the measured server. Without tenants it requires no authentication."""

import json
import sys
from pathlib import Path

from feedmux_server.app import CannotStart, serve
from feedmux_server.config.load import make_config
from feedmux_server.telemetry.log import configure

if __name__ == "__main__":
    configure("warning", "text")
    try:
        config = make_config(json.loads(Path(sys.argv[1]).read_text()))
        serve(config, insecure_no_auth=config.tenants_file is None)
    except CannotStart as error:
        sys.exit(f"feedmux cannot start: {error}")

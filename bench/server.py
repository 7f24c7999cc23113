"""`python -m bench.server CONFIG.json`: the server under measurement, a process of its own, open to all."""

import json
import sys
from pathlib import Path

from feedmux_server.app import CannotStart, serve
from feedmux_server.config import make_config
from feedmux_server.telemetry.log import configure

if __name__ == "__main__":
    configure("warning", "text")
    try:
        serve(make_config(json.loads(Path(sys.argv[1]).read_text())), insecure_no_auth=True)
    except CannotStart as error:
        sys.exit(f"feedmux cannot start: {error}")

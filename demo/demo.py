"""`./run demo`: shows feedmux with real servers, live in the terminal, and checks the result at the end.

The parts: `main` runs the demo, `world` starts the servers, `workload` writes, `subscriber` and `replica` read (one
process each), `observer` collects figures, `view` draws, `check` compares what was received with what was written.
With `--group`, `group` runs `worker`s that share a subscription, and `group_check` compares.
"""

import sys
from pathlib import Path

if __name__ == "__main__":
    try:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
        from demo.main import main

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)

"""`./run demo`: the main job, live in the terminal, with real servers, and checked at the end.

The parts: `main` directs, `world` starts the servers, `workload` writes, `subscriber` reads (one process each),
`observer` looks on, `view` draws, `check` compares what came with what was written.
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

"""The process that renders JSON, for tests: it freezes over events with much padding, before it answers."""

import os
import signal

from feedmux_server.workers import render_worker
from feedmux_server.workers.side_worker import Answer, serve_requests

FREEZE = b"x" * 1000
"""What such a request contains."""
SHORT_S = 0.1
"""The limit for it: nothing depends on how much a process does in so long."""
LONG_S = 3600.0


def limit_s(size: int) -> float:
    """Requests that freeze the process are the large ones."""
    return SHORT_S if size > len(FREEZE) else LONG_S


def _answer(request: bytes) -> Answer:
    if FREEZE in request:
        os.kill(os.getpid(), signal.SIGSTOP)
    return render_worker.answer(request)


if __name__ == "__main__":
    serve_requests(_answer)

"""A side process for tests: echoes, or does what the request says."""

import os
import signal
import time
from pathlib import Path

from feedmux_server.workers.side_worker import Answer, serve_requests


def answer(request: bytes) -> Answer:
    print("this must not get into an answer", flush=True)
    match request.split(b":", 1):
        case [b"die", _]:
            os._exit(1)
        case [b"freeze", _]:
            os.kill(os.getpid(), signal.SIGSTOP)
        case [b"wait", path]:
            while not Path(os.fsdecode(path)).exists():
                time.sleep(0.01)
        case [b"many", size]:
            return b"", b"x" * int(size)
    return b"", request


if __name__ == "__main__":
    serve_requests(answer)

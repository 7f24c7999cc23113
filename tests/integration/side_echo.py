"""A side process for tests: echoes, or does what the request says."""

import os
import signal
import time
from pathlib import Path

from feedmux_server.workers.side_worker import serve_requests


def answer(request: bytes) -> bytes:
    print("this must not get into an answer", flush=True)
    match request.split(b":", 1):
        case [b"die", _]:
            os._exit(1)
        case [b"freeze", _]:
            os.kill(os.getpid(), signal.SIGSTOP)
        case [b"freeze-once", path]:
            mark = Path(os.fsdecode(path))
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGSTOP)
        case [b"slow", seconds]:
            time.sleep(float(seconds))
        case [b"work", seconds]:
            end_s = time.process_time() + float(seconds)
            while time.process_time() < end_s:
                pass
        case [b"wait", path]:
            while not Path(os.fsdecode(path)).exists():
                time.sleep(0.01)
        case [b"many", size]:
            return b"x" * int(size)
    return request


if __name__ == "__main__":
    serve_requests(answer)

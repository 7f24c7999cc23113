"""Temporary folders for embedded servers: removed on stop, or by the next start if this process was killed.

Invariant: a folder whose `.owner` file is locked belongs to a living process. The kernel releases the lock when its
owner ends, for whatever reason; so a folder whose lock is free can be deleted (process ids would be wrong between
containers that share /tmp).
"""

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "feedmux-embedded-"


class WorkDir:
    """A temporary folder of this process. `path` exists until `remove`."""

    def __init__(self, name: str) -> None:
        _sweep()
        # The folder is locked before it gets the name that a sweep searches for.
        fresh = Path(tempfile.mkdtemp(prefix=f".{_PREFIX}"))
        self._lock = os.open(fresh / ".owner", os.O_CREAT | os.O_RDWR, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.path = fresh.rename(fresh.with_name(f"{_PREFIX}{name}-{fresh.name.rpartition('-')[2]}"))

    def remove(self) -> None:
        """Delete the folder. May be called again."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _sweep() -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(path / ".owner", os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pass
        else:
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)

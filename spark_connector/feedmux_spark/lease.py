"""Keeps a consumerName for one query, as long as the query's process on the driver lives.

Between applications, the server's lease does this. A plan renews it, but a micro-batch may take longer than the lease,
so a thread renews it meanwhile. Within one application, all queries of one name and server have one instance id, so
that a query that is stopped and started again is accepted at once. A lock tells them apart, which the kernel releases
when the process ends, however it ends: Spark kills the process of a query that is stopped.
"""

import fcntl
import hashlib
import logging
import os
import socket
import tempfile
import threading
import time
from pathlib import Path
from typing import Final

from feedmux.errors import FeedmuxError, SubscriptionBusy
from feedmux_spark.errors import FeedmuxSparkError
from feedmux_spark.options import Options
from feedmux_spark.planning import Planner

log = logging.getLogger("feedmux_spark")

RENEW_S: Final = 1.0
"""A plan is requested at least this often. Shorter than any lease that a server can be configured with, and less often
than an idle query plans."""
LOCK_WAIT_S: Final = 10.0
"""The process of a query that was just stopped may need this long to end."""

_files: dict[int, int] = {}
"""The open lock file of this process by its id. Never closed: closing any descriptor of a file releases all locks."""


def hold_name(options: Options, *, application: int, wait_s: float = LOCK_WAIT_S) -> None:
    """Locks the consumerName among the queries of an application, until this process ends.

    Raises FeedmuxSparkError if another query holds it.
    """
    assert options.consumer_name is not None
    identity = repr((application, options.endpoint, options.token, options.token_file, options.consumer_name))
    # One byte of the file for each name; the file stays empty.
    place = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:7])
    until_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.lockf(_lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except BlockingIOError:
            if time.monotonic() >= until_s:
                raise FeedmuxSparkError(
                    f"Another query of this Spark application reads under consumerName {options.consumer_name!r}: two"
                    " queries with one name would share one position, and each would miss events. Give each query, and"
                    " each load() within a query, its own consumerName; or stop the other query first."
                ) from None
            time.sleep(0.1)
        except OSError as error:  # no folder for the file, or one whose file system has no locks
            log.warning("cannot tell queries of this application with one consumerName apart: %s", error)
            return
        else:
            return


def _lock_file() -> int:
    pid = os.getpid()
    if pid not in _files:
        path = Path(tempfile.gettempdir(), f"feedmux-spark-{os.getuid()}.lock")
        _files[pid] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    return _files[pid]


def instance_id(options: Options) -> str:
    """Identifies the queries of this Spark application that have these credentials, as the server sees them.

    The parent of this process is the JVM, or the daemon that forks its workers; both live as long as the application.
    """
    credentials = repr((options.endpoint, options.token, options.token_file))
    digest = hashlib.sha256(credentials.encode()).hexdigest()[:8]
    parent = os.getppid()
    return f"spark/{socket.gethostname()[:60]}/{parent}-{_began(parent)}/{digest}"


def _began(pid: int) -> str:
    """When a process began, in ticks since the machine did: process ids repeat in containers of one host name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return "0"


class Renewal:
    """Renews the lease of a query from a thread, until `stop` or until the application has ended."""

    def __init__(self, planner: Planner) -> None:
        self._planner = planner
        self._application = os.getppid()
        self._stopped = threading.Event()
        self._lost = False

    def start(self) -> None:
        threading.Thread(target=self._run, name="feedmux-lease", daemon=True).start()

    def stop(self) -> None:
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(RENEW_S / 2):
            # An application that was killed must not keep its name through a process that has yet to notice.
            if os.getppid() != self._application:
                return
            self.renew(time.monotonic())

    def renew(self, now_s: float) -> None:
        """Renews the lease unless a plan was requested just now."""
        if now_s - self._planner.requested_s < RENEW_S / 2:
            return
        try:
            self._planner.renew()
        except SubscriptionBusy as error:
            if not self._lost:
                log.warning("another application has taken the consumerName of this query: %s", error)
            self._lost = True
        except (FeedmuxError, FeedmuxSparkError) as error:
            log.info("the lease could not be renewed, trying again: %s", error)  # the next plan reports what lasts
        else:
            self._lost = False

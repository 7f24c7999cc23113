"""The event loop of the synchronous classes: one daemon thread per process, started at the first use.

A client made before a fork works in both processes if its first call comes after the fork: each process has its own
thread. gRPC does not survive a fork after its first call; then the child gets an error instead of waiting forever.
"""

import asyncio
import atexit
import os
import sys
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar
from weakref import WeakSet, WeakValueDictionary

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in its own thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(_on_exception)
        self._process = os.getpid()
        self._lock = threading.RLock()  # a signal handler may call while its thread is inside `submit`
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="feedmux", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine on the loop, from any other thread. Raises as `check` does."""
        try:
            self.check()  # also before taking the lock, which another thread may have held at a fork
            with self._lock:
                self.check()
                return asyncio.run_coroutine_threadsafe(work, self.loop)
        except RuntimeError:
            work.close()
            raise

    def check(self) -> None:
        """Raise RuntimeError if the loop does not run, so that waiting for it would never end.

        That is the case in a child forked from the loop's process, and after the interpreter has begun to exit. Then, a
        daemon thread gets no error, but stops here, as Python stops it wherever it waits: otherwise each program that
        reads events in such a thread would end with a traceback.
        """
        if self._process != os.getpid():
            raise RuntimeError(_FORKED_LATE)
        if self._stopped:
            if threading.current_thread().daemon:
                threading.Event().wait()
            raise RuntimeError(
                "the interpreter is exiting, and feedmux has stopped: close sessions and clients earlier"
            )

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine on the loop and wait for its result. An interrupt or the timeout cancels the coroutine.

        Raises TimeoutError after `timeout_s` seconds; RuntimeError in a signal handler that has interrupted its thread
        where that holds a lock that the loop waits for: the result would never come.
        """
        if _holds_a_lock():
            work.close()
            raise RuntimeError("a signal handler has interrupted feedmux itself, and may only close: call it elsewhere")
        future = self.submit(work)
        try:
            return future.result(timeout_s)
        except BaseException:
            future.cancel()
            raise

    def end(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that ends something, and wait for it, as `call` does; where that would raise, do not wait."""
        if _holds_a_lock():
            self.submit(work)
        else:
            self.call(work)

    def stop(self) -> None:
        """Cancel the running tasks and end the thread."""
        with self._lock:
            self._stopped = True
        if self.loop.is_running():
            with suppress(RuntimeError):  # The loop has ended.
                self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(2.0)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))


_FORKED_LATE = (
    "gRPC does not survive a fork after its first call, also not for a new client: fork first, or start the process"
    " with multiprocessing.get_context('spawn')"
)
_PATCHED = (
    "feedmux does not work where gevent or eventlet have patched Python's threads, and feedmux.Client not where they"
    " have patched its sockets: use it in a process without monkey patching"
)
_LOOP_PARTS = ("threading", "select", "socket")
"""What an event loop in a thread needs."""
_OF_EVENTLET = {"threading": "thread"}
_lock = threading.RLock()
_forked_late = False
_background_loops: dict[int, BackgroundLoop] = {}
_shared_locks = WeakValueDictionary[int, threading.Condition]()
open_channels = WeakSet[object]()
"""The channels that hold threads of gRPC, also those of event loops of the user's."""


def shared(lock: threading.RLock) -> threading.Condition:
    """Return the condition of a lock that both the loop and its users take: a thread that holds it cannot wait for the
    loop. The condition must live as long as the lock. It is not to be entered itself: a signal handler that raises in
    its code, which is Python's, would leave the lock locked."""
    condition = threading.Condition(lock)
    _shared_locks[id(condition)] = condition
    return condition


def _holds_a_lock() -> bool:
    """Whether this thread holds a shared lock: then this is called by a signal handler, as no other code calls with a
    lock held."""
    return any(_is_mine(lock) for each in _shared_locks.valuerefs() if (lock := each()) is not None)


def _is_mine(lock: threading.Condition) -> bool:
    try:
        lock.notify(0)
    except RuntimeError:
        return False
    return True


def background_loop() -> BackgroundLoop:
    """Return the background loop of this process.

    Raises RuntimeError in a child forked from a process that had a background loop, and where gevent or eventlet have
    patched what an event loop in a thread needs.
    """
    check_process()
    known = _background_loops.get(os.getpid())
    if known is not None:
        return known
    if _is_patched(*_LOOP_PARTS):
        # The thread would be a coroutine of the caller's own thread, which waits for it: the process would stand still.
        raise RuntimeError(_PATCHED)
    with _lock:
        if os.getpid() not in _background_loops:
            # A signal handler may have made one meanwhile.
            _background_loops.setdefault(os.getpid(), BackgroundLoop())
        return _background_loops[os.getpid()]


def check_process() -> None:
    """Raise RuntimeError where a call would never return: in a child forked from a process that had a background loop
    or an open channel, and where gevent or eventlet have patched the threads that gRPC starts from Python."""
    if _forked_late:
        raise RuntimeError(_FORKED_LATE)
    if _is_patched("threading"):
        raise RuntimeError(_PATCHED)


def _is_patched(*modules: str) -> bool:
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    return (gevent is not None and any(map(gevent.is_module_patched, modules))) or (
        eventlet is not None and any(eventlet.is_monkey_patched(_OF_EVENTLET.get(name, name)) for name in modules)
    )


@atexit.register
def _stop() -> None:
    # A loop that gRPC still calls into while the interpreter exits crashes the interpreter.
    known = _background_loops.pop(os.getpid(), None)
    if known is not None:
        known.stop()


def _after_fork() -> None:
    global _lock, _forked_late
    _lock = threading.RLock()
    _forked_late = _forked_late or bool(_background_loops) or bool(open_channels)


os.register_at_fork(after_in_child=_after_fork)


def _on_exception(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    # With event loops in several threads, all of gRPC's pollers wake for one event, and the late ones find nothing to
    # read.
    if isinstance(context.get("exception"), BlockingIOError):
        return
    loop.default_exception_handler(context)

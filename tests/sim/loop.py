"""An asyncio event loop with virtual time and a seeded order of tasks.

Time stands still while anything is ready, and then jumps to the next timer. The seed decides which of the ready tasks
runs next. Plain callbacks (`call_soon`, timers, callbacks of futures) stay in the order in which they were registered,
as asyncio documents; so do the steps of one task. asyncio promises no order between tasks, so the order is drawn.

Every task and timer belongs to a process of the simulation (`process`, a context variable). A frozen process does not
run; the others do. A killed process never runs again, not even its `finally` blocks, as after SIGKILL. Sockets, threads
and subprocesses raise `OutsideWorld`.
"""

import asyncio
import heapq
import logging
import warnings
from bisect import insort
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from math import inf
from random import Random
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

EPOCH_S = 1_800_000_000
"""The wall clock at the start of a run."""
STEPS_AT_ONCE_MAX = 200_000
"""This many steps without any progress of time mean that something spins."""

VIRTUAL_S_MAX = 3_600.0
"""Runs last for a few minutes: after this time, a task waits for something that never comes."""

process: ContextVar[str] = ContextVar("process", default="")
"""The simulated process that is running."""


class OutsideWorld(Exception):
    """The code under test used a socket, a thread or a subprocess."""


class Stuck(Exception):
    """No task can run any more, or something spins."""


class _Handle(asyncio.Handle):
    """A handle without asyncio's debug mode."""

    __slots__ = ()

    def __init__(self, callback: Any, args: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True
        self._callback, self._args = None, ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._callback!r} {self._args!r}>"


class _Timer(asyncio.TimerHandle):
    """A timer without asyncio's debug mode. Cancelled timers leave the heap when they are due."""

    __slots__ = ()

    def __init__(self, when: float, callback: Any, args: Any, context: Context | None) -> None:
        self._context = copy_context() if context is None else context
        self._callback = callback
        self._args = args
        self._cancelled = False
        self._when = when

    cancel = _Handle.cancel
    __repr__ = _Handle.__repr__


class _Task(asyncio.Task[Any]):
    """A numbered task: the draw must not depend on addresses of objects."""

    number = 0
    """0 during the constructor, which schedules the first step as a plain callback."""
    process = ""


def _name(context: Context | None) -> None:
    """Give a context its process. The server begins tasks and callbacks in empty contexts, which outlive their
    cause."""
    if context is not None and process not in context:
        context.run(process.set, process.get())


class SimLoop(asyncio.BaseEventLoop):
    """The event loop that the module's docstring describes."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self._rng = rng
        self._now_s = 0.0
        self._timers: list[tuple[float, int, _Timer]] = []
        """A heap. Timers of the same moment run in the order in which they were set."""
        self._set = 0
        self._plain: deque[asyncio.Handle] = deque()
        self._steps: dict[int, deque[asyncio.Handle]] = {}
        """The steps of ready tasks, by the number of the task."""
        self._numbers: list[int] = []
        """Keys of `_steps`, sorted."""
        self._frozen: dict[str, list[asyncio.Handle]] = {}
        self._dead: dict[str, list[asyncio.Task[Any]]] = {}
        """Killed processes, each with its tasks: they are retained because a coroutine that is collected runs its
        `finally`."""
        self._pauses: dict[str, list[tuple[float, float]]] = {}
        """The intervals in which each process was frozen; the end is infinity while it still is."""
        self._created = 0
        self._steps_at_once = 0
        self.steps = 0
        self.before_jump: Callable[[], None] = lambda: None
        """Called when nothing is ready, before time jumps. It must schedule nothing."""
        self.failures: list[dict[str, Any]] = []
        """Exceptions of callbacks, and what asyncio would have logged as "never retrieved"."""
        self.ahead_s: dict[str, float] = {}
        """Processes whose wall clock is wrong, and how far it is ahead."""
        self.set_task_factory(self._make_task)  # type: ignore[arg-type]
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    # The clock.

    def time(self) -> float:
        return self._now_s

    def true_wall_s(self) -> float:
        return EPOCH_S + self._now_s

    def wall_s(self) -> float:
        """The wall clock of the running process."""
        return self.true_wall_s() + self.ahead_s.get(process.get(), 0.0)

    # Freezing.

    def freeze(self, name: str) -> None:
        if name not in self._frozen:
            self._frozen[name] = []
            self._pauses.setdefault(name, []).append((self._now_s, inf))

    def thaw(self, name: str) -> None:
        if name not in self._frozen:
            return
        began_s, _ = self._pauses[name].pop()
        self._pauses[name].append((began_s, self._now_s))
        for handle in self._frozen.pop(name):
            self._put(handle)

    def awake_s(self, name: str, since_s: float) -> float:
        """How long a process was not frozen since `since_s`; negative before `since_s`."""
        now_s = self._now_s
        pauses = ((max(since_s, first_s), min(now_s, last_s)) for first_s, last_s in self._pauses.get(name, ()))
        return now_s - since_s - sum(max(0.0, last_s - first_s) for first_s, last_s in pauses)

    def kill(self, name: str) -> None:
        """End a process as SIGKILL does. Its name must not be used again."""
        self._frozen.pop(name, None)
        self._dead[name] = self.tasks_of(name)
        self._plain = deque(handle for handle in self._plain if not self._is_dead(handle))
        for number in list(self._steps):
            left = deque(handle for handle in self._steps[number] if not self._is_dead(handle))
            if left:
                self._steps[number] = left
            else:
                del self._steps[number]
                self._numbers.remove(number)

    def bury(self) -> None:
        """After the run, release the tasks of killed processes. What their coroutines then do is ignored."""
        disabled = logging.root.manager.disable
        logging.disable()
        try:
            with warnings.catch_warnings(action="ignore"):
                for tasks in self._dead.values():
                    for task in tasks:
                        task._log_destroy_pending = False  # type: ignore[attr-defined]
                        with suppress(Exception):
                            task.get_coro().close()
                self._dead.clear()
        finally:
            logging.disable(disabled)

    def close(self) -> None:
        """Close the loop, and drop what it refers to: a session that was never closed keeps the loop alive."""
        super().close()
        self.before_jump = lambda: None
        self._timers.clear()
        self._plain.clear()
        self._steps.clear()
        self._numbers.clear()
        self._frozen.clear()

    def _is_dead(self, handle: Any) -> bool:
        return handle._context.get(process, "") in self._dead

    # Methods that BaseEventLoop calls.

    def call_soon(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        _name(context)
        handle = _Handle(callback, args, context)
        self._put(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._set_timer(self._now_s + delay, callback, args, context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self._set_timer(when, callback, args, context)

    def _set_timer(self, when: float, callback: Any, args: Any, context: Context | None) -> _Timer:
        timer = _Timer(when, callback, args, context)
        self._set += 1
        heapq.heappush(self._timers, (when, self._set, timer))
        return timer

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def _put(self, handle: Any) -> None:
        if self._frozen and (parked := self._frozen.get(handle._context.get(process, ""))) is not None:
            parked.append(handle)
            return
        if self._dead and self._is_dead(handle):
            return
        owner = getattr(handle._callback, "__self__", None)
        number = owner.number if owner.__class__ is _Task else 0
        if not number:
            self._plain.append(handle)
            return
        waiting = self._steps.get(number)
        if waiting is None:
            self._steps[number] = deque((handle,))
            insort(self._numbers, number)
        else:
            waiting.append(handle)

    def _make_task(self, loop: Any, coroutine: Coroutine[Any, Any, T], **options: Any) -> "asyncio.Task[T]":
        context: Context | None = options.get("context")
        _name(context)
        task = _Task(coroutine, loop=loop, **options)
        self._created += 1
        task.number = self._created
        task.process = process.get() if context is None else context.get(process, "")
        return task

    def tasks_of(self, name: str) -> "list[asyncio.Task[Any]]":
        """The tasks of a process that was not killed, in the order in which they were created."""
        if name in self._dead:
            return []
        found = [task for task in asyncio.all_tasks(self) if isinstance(task, _Task) and task.process == name]
        found.sort(key=lambda task: task.number)
        return list(found)

    def _run_once(self) -> None:
        """Run until `stop`: one call for all steps, because the caller's loop costs as much as a short step."""
        timers, numbers, steps, draw = self._timers, self._numbers, self._steps, self._rng.random
        while not self._stopping:  # type: ignore[attr-defined]
            plain = self._plain
            if not plain and not numbers:
                self._jump()
            while timers and timers[0][0] <= self._now_s:
                timer = heapq.heappop(timers)[2]
                if not timer._cancelled:
                    self._put(timer)
            # Draw one of the first plain callback and the ready tasks.
            choices = len(numbers) + bool(plain)
            if not choices:
                continue  # everything that is due belongs to frozen processes
            drawn = int(draw() * choices) if choices > 1 else 0
            if drawn == len(numbers):
                handle: Any = plain.popleft()
            else:
                number = numbers[drawn]
                waiting = steps[number]
                handle = waiting.popleft()
                if not waiting:
                    del steps[number], numbers[drawn]
            if handle._cancelled:
                continue
            self.steps += 1
            self._steps_at_once += 1
            if self._steps_at_once > STEPS_AT_ONCE_MAX:
                raise Stuck(f"{STEPS_AT_ONCE_MAX} steps without progress of time; the last is {handle!r}")
            try:
                handle._context.run(handle._callback, *handle._args)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as error:  # noqa: BLE001 as asyncio's own handles
                self.call_exception_handler({"message": f"Exception in {handle!r}", "exception": error})

    def _jump(self) -> None:
        """Move time to the next timer."""
        timers = self._timers
        while timers and timers[0][2]._cancelled:
            heapq.heappop(timers)
        if not timers:
            raise Stuck("no task can run and no timer is set")
        self._steps_at_once = 0
        self.before_jump()
        self._now_s = max(self._now_s, timers[0][0])
        if self._now_s > VIRTUAL_S_MAX:
            raise Stuck(f"the run has not ended after {VIRTUAL_S_MAX:.0f} s; the next timer is {timers[0][2]!r}")

    def _write_to_self(self) -> None:
        """Do nothing: no other thread waits to be woken."""

    def _process_events(self, event_list: Any) -> None:
        """Do nothing: there is no selector."""

    def timers(self) -> list[asyncio.TimerHandle]:
        """The timers that are set."""
        return [timer for _, _, timer in sorted(self._timers) if not timer.cancelled()]

    # Forbidden operations.

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> NoReturn:  # type: ignore[override]
        raise OutsideWorld(f"a thread: {func!r}")

    async def create_connection(self, *args: Any, **options: Any) -> NoReturn:
        raise OutsideWorld("a connection")

    async def create_server(self, *args: Any, **options: Any) -> NoReturn:
        raise OutsideWorld("a server socket")

    async def subprocess_exec(self, *args: Any, **options: Any) -> NoReturn:
        raise OutsideWorld("a subprocess")

    async def subprocess_shell(self, *args: Any, **options: Any) -> NoReturn:
        raise OutsideWorld("a subprocess")

    def add_reader(self, *args: Any) -> NoReturn:  # type: ignore[override]
        raise OutsideWorld("a file descriptor")

    add_writer = add_reader  # type: ignore[assignment]

    def add_signal_handler(self, *args: Any) -> NoReturn:  # type: ignore[override]
        """A program of the simulation gets no signals."""
        raise NotImplementedError

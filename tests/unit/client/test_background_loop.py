"""The thread of the synchronous classes: results, errors, forks, and the end of the interpreter."""

import asyncio
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

import feedmux.background_loop
from feedmux.background_loop import BackgroundLoop, background_loop


def test_what_runs_when_it_stops_is_cancelled_and_what_comes_later_is_told() -> None:
    async def begun() -> None:
        running.append(asyncio.create_task(asyncio.Event().wait()))

    running: list[asyncio.Task[object]] = []
    loop = BackgroundLoop()
    loop.call(begun())
    loop.stop()
    assert running[0].cancelled()
    late = begun()
    with pytest.raises(RuntimeError, match="the interpreter is exiting"):
        loop.call(late)
    loop.loop.close()


def test_a_process_forked_too_late_is_told() -> None:
    # In a fresh process: this one has threads and connections that a fork would copy.
    program = """
import os, feedmux
from feedmux.background_loop import background_loop
early = os.fork()
background_loop()
if early == 0:
    os._exit(0)
assert os.waitpid(early, 0)[1] == 0
made, told = background_loop(), 0
if os.fork() == 0:
    # Also by what was made before, such as a session in a `with`, whose loop is in the parent alone.
    # And by new clients, of which an asynchronous one would wait forever.
    def new():
        feedmux.Client("127.0.0.1:1").subscription("s").get()
    def new_async():
        asyncio.run(feedmux.AsyncClient("127.0.0.1:1").subscription("s").get())
    for use in (background_loop, lambda: made.call(asyncio.sleep(0)), new, new_async):
        try:
            use()
        except RuntimeError as error:
            told += "spawn" in str(error)
    os._exit(4 - told)
assert os.wait()[1] == 0
"""
    subprocess.run([sys.executable, "-c", "import asyncio\n" + program], check=True, timeout=60)


def test_a_process_forked_from_one_with_an_open_asynchronous_client_is_told() -> None:
    program = """
def new():
    feedmux.Client("127.0.0.1:1").subscription("s").get()
def new_async():
    asyncio.run(feedmux.AsyncClient("127.0.0.1:1").subscription("s").get())
def told(use):
    try:
        use()
    except RuntimeError as error:
        return "spawn" in str(error)
async def use():
    async with feedmux.AsyncClient("127.0.0.1:1") as client:
        with contextlib.suppress(feedmux.Unavailable):
            await client.subscription("s").get()
        if os.fork() == 0:
            os._exit(2 - told(new) - told(new_async))
        assert os.wait()[1] == 0
asyncio.run(use())
"""
    imports = "import asyncio, contextlib, os, feedmux\n"
    subprocess.run([sys.executable, "-c", imports + program], check=True, timeout=60)


@pytest.mark.parametrize(
    ("module", "function", "part"),
    [
        ("gevent.monkey", "is_module_patched", "threading"),
        ("gevent.monkey", "is_module_patched", "select"),
        ("eventlet.patcher", "is_monkey_patched", "thread"),
        ("eventlet.patcher", "is_monkey_patched", "socket"),
        ("gevent.monkey", "is_module_patched", ""),
    ],
)
def test_monkey_patched_threads_are_an_error(
    monkeypatch: pytest.MonkeyPatch, module: str, function: str, part: str
) -> None:
    """With them, the first call would wait for a thread that never runs. gRPC also starts one for an asynchronous
    client, and none of its sockets is Python's."""
    monkeypatch.setattr(feedmux.background_loop, "_background_loops", {})
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(**{function: lambda name: name == part}))
    if part:
        with pytest.raises(RuntimeError, match="monkey patching"):
            background_loop()
        if part in ("threading", "thread"):
            with pytest.raises(RuntimeError, match="monkey patching"):
                asyncio.run(feedmux.AsyncClient("127.0.0.1:1").subscription("s").get())
    else:
        made = background_loop()
        made.stop()
        made.loop.close()


def test_who_comes_after_the_end_of_the_interpreter_has_begun_is_told() -> None:
    """Functions that were registered before feedmux was imported run after its own."""
    program = """
import asyncio, atexit

def close():
    try:
        made.call(asyncio.sleep(0))
    except RuntimeError as error:
        print(error)

atexit.register(close)
from feedmux.background_loop import background_loop
made = background_loop()
made.call(asyncio.sleep(0))
"""
    ended = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert "close sessions and clients earlier" in ended.stdout
    assert not ended.stderr


def test_a_call_that_takes_too_long_is_cancelled() -> None:
    async def others() -> int:
        return len(asyncio.all_tasks()) - 1

    loop = BackgroundLoop()
    try:
        with pytest.raises(TimeoutError):
            loop.call(asyncio.Event().wait(), 0.01)
        assert loop.call(others()) == 0
    finally:
        loop.stop()
        loop.loop.close()


def test_a_signal_handler_may_need_the_loop_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[BackgroundLoop] = []

    class Interrupted(BackgroundLoop):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)
            if len(made) == 1:
                assert background_loop() is made[1]

    monkeypatch.setattr(feedmux.background_loop, "_background_loops", {})
    monkeypatch.setattr(feedmux.background_loop, "BackgroundLoop", Interrupted)
    found: list[BackgroundLoop] = []
    thread = threading.Thread(target=lambda: found.append(background_loop()), daemon=True)
    thread.start()
    thread.join(60.0)
    _, inner = made
    assert found == [inner]
    for loop in made:
        loop.stop()
        loop.loop.close()

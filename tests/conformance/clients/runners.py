"""The runners of the clients: where they are, what they need, and one that runs.

A runner speaks JSON lines, see README.md beside this file. One process of each plays all scenarios of its language.
"""

import asyncio
import json
import os
import shutil
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).parents[3]
RUNNER_VERSION: Final = 1
LINE_BYTES_MAX: Final = 256 * 1024 * 1024
START_S: Final = 60.0
BUILD_S: Final = 420.0
END_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Language:
    """A client, by what starts its runner. `build` is run once before; `tools` must be on the PATH."""

    name: str
    title: str
    command: tuple[str, ...]
    build: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()

    @property
    def present(self) -> bool:
        """Whether the repository has this runner."""
        return not self.build or (REPOSITORY / self.build[0]).exists()

    @property
    def missing(self) -> list[str]:
        """Tools that this machine does not have."""
        return [tool for tool in self.tools if shutil.which(tool) is None]


def _script(folder: str, title: str, *tools: str) -> Language:
    name = folder.partition("/")[0]
    run = f"clients/{folder}/conformance/run"
    return Language(name, title, (run,), (run, "--build"), tools)


LANGUAGES: Final = {
    each.name: each
    for each in (
        Language("python", "Python", (sys.executable, "-m", "tests.conformance.clients.python_runner")),
        _script("go/feedmux", "Go", "go"),
        _script("node", "Node", "node", "npm"),
        _script("java", "Java", "java", "mvn"),
    )
}


class RunnerFailed(AssertionError):
    """The runner did not build, start or answer, or refused a command; the message has what it wrote to stderr."""


class Runner:
    """A runner that runs. `ask` sends a command and waits for its reply."""

    def __init__(self, language: Language, process: asyncio.subprocess.Process) -> None:
        self.language = language
        self.said: deque[str] = deque(maxlen=60)
        """Its last lines on standard error."""
        self.spoken: deque[str] = deque(maxlen=60)
        """The last lines of the conversation, shortened."""
        self._process = process
        self._next_id = 1
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_stderr())]

    @property
    def running(self) -> bool:
        return self._process.returncode is None

    def send(self, do: str, /, **fields: Any) -> asyncio.Future[dict[str, Any]]:
        """Sends a command; its reply comes as the future's result, whole."""
        message = {"id": self._next_id, "do": do, **fields}
        self._next_id += 1
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[message["id"]] = reply
        assert self._process.stdin is not None
        line = json.dumps(message)
        self.spoken.append(f"→ {line[:400]}")
        self._process.stdin.write(line.encode() + b"\n")
        return reply

    async def ask(self, do: str, patience_s: float, /, **fields: Any) -> dict[str, Any]:
        """The content of the reply. Raises RunnerFailed where there is none, or an error."""
        reply = await self.attempt(do, patience_s, **fields)
        if "error" in reply:
            raise self.failed(f"{do!r}: {reply['error']}")
        return dict(reply["ok"] or {})

    async def attempt(self, do: str, patience_s: float, /, **fields: Any) -> dict[str, Any]:
        """The whole reply, which may be an error of the client's. Raises RunnerFailed."""
        try:
            async with asyncio.timeout(patience_s):
                reply = await self.send(do, **fields)
        except TimeoutError:
            raise self.failed(f"no reply to {do!r} within {patience_s:g} s") from None
        if reply.get("error", {}).get("type") == "BadCommand":
            raise self.failed(f"{do!r}: {reply['error'].get('message')}")
        return reply

    def failed(self, what: str) -> RunnerFailed:
        """An error that shows what was said before."""
        return RunnerFailed("\n".join((f"{self.language.name}: {what}", *self.spoken, "stderr:", *self.said)))

    async def end(self) -> bool:
        """Closes its standard input, and kills it where that is not enough. Whether it was."""
        by_itself = True
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            by_itself = False
            self._process.kill()
            await self._process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        return by_itself

    async def _read(self) -> None:
        assert self._process.stdout is not None
        try:
            while line := await self._process.stdout.readline():
                self.spoken.append(f"← {line[:400].decode(errors='replace').rstrip()}")
                reply = json.loads(line)
                waiting = self._waiting.pop(reply["id"])
                if not waiting.done():
                    waiting.set_result(reply)
        except (ValueError, KeyError) as error:
            self._give_up(f"a line that is no reply: {error!r}")
            return
        code = await self._process.wait()
        self._give_up(f"the runner ended with exit code {code}")

    def _give_up(self, why: str) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self.failed(why))
        self._waiting.clear()

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.said.append(line[:1000].decode(errors="replace").rstrip())


async def build(language: Language, root: Path = REPOSITORY) -> None:
    """Builds the runner where it needs that. `root` is the tree that has it. Raises RunnerFailed."""
    if not language.build:
        return
    process = await asyncio.create_subprocess_exec(
        *language.build,
        cwd=root,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(BUILD_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise RunnerFailed(f"{language.name}: the runner was not built within {BUILD_S:g} s") from None
    if process.returncode:
        text = output.decode(errors="replace")[-8000:]
        raise RunnerFailed(f"{' '.join(language.build)} exited with {process.returncode}\n{text}")


@asynccontextmanager
async def started(language: Language, root: Path = REPOSITORY) -> AsyncIterator[Runner]:
    """A runner that has said hello. It ends with its standard input, so also when this process is killed."""
    process = await asyncio.create_subprocess_exec(
        *language.command,
        cwd=root,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
        limit=LINE_BYTES_MAX,
    )
    runner = Runner(language, process)
    try:
        hello = await runner.ask("hello", START_S)
        if (hello.get("client"), hello.get("runner")) != (language.name, RUNNER_VERSION):
            raise runner.failed(f"this is no runner {RUNNER_VERSION} of {language.name}: {hello}")
        yield runner
    finally:
        await runner.end()

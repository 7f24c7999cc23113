"""A file that changes is read again once, and not while it is being written."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from feedmux_server.tenants.watched_files import WatchedFiles
from tests.integration.servers import until


class Watch:
    """A watched file, and the contents that were read from it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.found: list[str] = []
        self.looks = 0
        self.parts: list[str] = []
        """Contents to write, one before each check of the file."""
        path.write_text("0")
        self.files = WatchedFiles([path])
        check = self.files.check

        def counted() -> tuple[bytes | None, ...]:
            self.looks += 1
            if self.parts:
                self.path.write_text(self.parts.pop(0))
            return check()

        self.files.check = counted  # type: ignore[method-assign]

    async def reload(self) -> bool:
        text = self.path.read_text()
        self.found.append(text)
        if text == "defect":
            raise RuntimeError("canary")
        return text != "away" or self.found.count(text) == 3

    async def after_looks(self, count: int) -> None:
        wanted = self.looks + count
        await until(lambda: self.looks >= wanted)


@pytest_asyncio.fixture
async def watch(tmp_path: Path) -> AsyncIterator[Watch]:
    made = Watch(tmp_path / "file")
    task = asyncio.create_task(made.files.run(lambda: made.reload(), every_s=0.02))
    yield made
    assert not task.done()
    task.cancel()


async def test_once_for_each_change(watch: Watch) -> None:
    await watch.after_looks(3)
    assert watch.found == []
    watch.path.write_text("1")
    await until(lambda: watch.found)
    await watch.after_looks(5)
    watch.path.write_text("1")
    await watch.after_looks(5)
    assert watch.found == ["1"]


async def test_what_comes_back_is_no_change(watch: Watch) -> None:
    watch.path.unlink()
    watch.path.write_text("0")
    await watch.after_looks(5)
    assert watch.found == []


async def test_not_while_it_is_being_written(watch: Watch) -> None:
    watch.parts = ["half " * number for number in range(20)] + ["whole"]
    await until(lambda: watch.found)
    assert watch.found == ["whole"]


async def test_a_defect_ends_nothing_and_is_tried_again(watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    watch.path.write_text("defect")
    await until(lambda: len(watch.found) == 2)
    watch.path.write_text("1")
    await until(lambda: watch.found[-1] == "1")
    assert set(watch.found) == {"defect", "1"}
    assert "RuntimeError" in caplog.text
    assert "canary" not in caplog.text


async def test_what_could_not_be_read_for_a_moment_is_read_at_the_next_look(watch: Watch) -> None:
    watch.path.write_text("away")
    await until(lambda: len(watch.found) == 3)
    await watch.after_looks(5)
    assert watch.found == ["away"] * 3


async def test_a_file_that_stays_away_is_tried_once(watch: Watch) -> None:
    calls: list[None] = []

    async def reload() -> bool:
        calls.append(None)
        return False

    watch.reload = reload  # type: ignore[method-assign]
    watch.path.unlink()
    await until(lambda: calls)
    await watch.after_looks(10)
    assert len(calls) == 1

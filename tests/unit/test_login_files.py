"""A login in files: what they may hold, and when they are read again."""

import asyncio
import logging
from pathlib import Path

import pytest

from feedmux_server.config.errors import ConfigError, FileUnreadable
from feedmux_server.login_files import LoginFiles


def files(folder: Path) -> LoginFiles:
    return LoginFiles("redis", username_file=folder / "user", password_file=folder / "password")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_the_end_of_the_line_does_not_count(tmp_path: Path, end: str) -> None:
    (tmp_path / "user").write_text("one")
    (tmp_path / "password").write_bytes(f" canary:@{end}".encode())
    read = files(tmp_path)
    assert (read.username, read.password) == ("one", " canary:@")
    assert not LoginFiles("redis", username_file=None, password_file=None).has_files


@pytest.mark.parametrize("content", [b"", b"\n", b"canary\nsecond", b"canary\0", b"\xffcanary", b"canary" * 20_000])
def test_what_is_no_login_is_rejected_and_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "user").write_text("one")
    (tmp_path / "password").write_bytes(content)
    with pytest.raises(ConfigError, match=r"redis\.password_file") as caught:
        files(tmp_path)
    assert "canary" not in str(caught.value)
    (tmp_path / "password").unlink()
    with pytest.raises(FileUnreadable):
        files(tmp_path)


async def test_a_changed_file_is_read_again_and_an_unusable_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "user").write_text("one")
    (tmp_path / "password").write_text("first-canary")
    read, seen = files(tmp_path), asyncio.Queue[str]()

    async def changed() -> None:
        seen.put_nowait(read.password)

    async def is_logged() -> None:
        while "one read before stays in force" not in caplog.text:
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.INFO):
        task = asyncio.create_task(read.run(0.001, changed))
        (tmp_path / "password").write_text("")
        await asyncio.wait_for(is_logged(), 60)
        (tmp_path / "password").write_text("second-canary")
        assert await asyncio.wait_for(seen.get(), 60) == "second-canary"
    assert "canary" not in caplog.text
    task.cancel()
    await asyncio.wait([task])

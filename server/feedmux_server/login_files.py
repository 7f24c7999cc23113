"""A user and a password that files hold, and that are read again when the files change: those of MongoDB and Redis. So
are the certificates of a connection to MongoDB.

Kubernetes mounts a Secret like this, and follows its changes.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

from feedmux_server.config.errors import ConfigError, FileUnreadable
from feedmux_server.tenants.watched_files import WatchedFiles

log = logging.getLogger(__name__)

_BYTES_MAX: Final = 64 << 10

OnChange = Callable[[], Awaitable[None]]


class LoginFiles:
    """The constructor raises ConfigError if a file cannot be used. Later, what was read before stays in force."""

    def __init__(
        self,
        section: str,
        *,
        username_file: Path | None,
        password_file: Path | None,
        prefix: str = "",
        tls_files: Sequence[Path] = (),
    ) -> None:
        """`section` has the options `username_file` and `password_file`, with `prefix` before both names. Without a
        file, its value is empty. `tls_files`: whoever uses the login reads them; only their changes count here."""
        self._section = section
        self._tls = WatchedFiles(tls_files)
        self._tls_seen = self._tls.check()
        self._files = {f"{prefix}username_file": username_file, f"{prefix}password_file": password_file}
        # The watch begins before the read, so that a file that changes during the read is read again.
        named = [path for path in self._files.values() if path is not None]
        self._watch = WatchedFiles([*named, *tls_files])
        self.username, self.password = self._read()

    @property
    def has_files(self) -> bool:
        return bool(self._watch.paths)

    async def run(self, every_s: float, changed: OnChange) -> None:
        """Read the files again when they change, and call `changed`, until cancelled."""

        async def reload() -> bool:
            try:
                read = await asyncio.to_thread(self._read)
            except ConfigError as error:
                log.error("a login cannot be used; the one read before stays in force: %s", error)
                return not isinstance(error, FileUnreadable)
            tls = await asyncio.to_thread(self._tls.check)
            before = self.username, self.password
            if (*read, tls) != (*before, self._tls_seen):
                self.username, self.password = read
                try:
                    await changed()
                except Exception as error:  # noqa: BLE001 a file of TLS that is being replaced too
                    self.username, self.password = before
                    log.error("the new login of %s cannot be used yet: %s", self._section, type(error).__name__)
                    return False
                self._tls_seen = tls
                log.info("the login of %s was read again; new connections use it", self._section)
            return True

        await self._watch.run(reload, every_s=every_s)

    def _read(self) -> tuple[str, str]:
        username, password = (self._text(option, path) if path else "" for option, path in self._files.items())
        return username, password

    def _text(self, option: str, path: Path) -> str:
        place = f"{self._section}.{option}: {path}"
        try:
            with path.open("rb") as file:
                content = file.read(_BYTES_MAX + 1)
            text = content.decode("utf-8-sig").removesuffix("\n").removesuffix("\r")
        except OSError as error:
            raise FileUnreadable(f"{place} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{place} is not UTF-8") from None
        if not text or len(content) > _BYTES_MAX or any(character in text for character in "\0\r\n"):
            raise ConfigError(f"{place} must hold one line, and nothing else")
        return text

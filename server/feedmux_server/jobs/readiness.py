"""Checks the sources and Redis, again and again, and shows in `health` whether they are available.

A dependency that was unavailable at the start is made ready here when it becomes available: its check connects it. If
it turns out to be unfit (a standalone mongod, a Redis that evicts), the same error is raised as at the start.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.readiness import Presence, ReadinessRules
from feedmux_server.rpc.health import Health

log = logging.getLogger(__name__)

Check = Callable[[], Awaitable[None]]
"""Raises FeedmuxError, with an UNAVAILABLE reason while the dependency is unavailable, or another reason if it is
unfit."""


class Readiness:
    def __init__(
        self, health: Health, checks: Mapping[str, Check], there: Mapping[str, bool], rules: ReadinessRules
    ) -> None:
        """`checks` and `there` have the names that `health` shows as keys."""
        self._health = health
        self._checks = checks
        self._presence = {name: Presence(rules, there=there[name]) for name in checks}

    @property
    def there(self) -> dict[str, bool]:
        return {name: presence.there for name, presence in self._presence.items()}

    async def run(self, every_s: float, timeout_s: float) -> None:
        """Check again and again until cancelled; the server owns this task. Raises the error of an unfit dependency,
        and any unexpected failure of a check."""
        while True:
            self._health.show(self.there)
            await asyncio.sleep(every_s)
            answers = await asyncio.gather(*(self._ask(n, timeout_s) for n in self._checks), return_exceptions=True)
            for name, failure in zip(self._checks, answers, strict=True):
                if isinstance(failure, BaseException):
                    continue  # raised below, after the other answers were observed
                if self._presence[name].observe(not failure):
                    said = log.error if failure else log.warning
                    said("%s is %s", name, f"unavailable: {failure}" if failure else "available again")
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer

    async def _ask(self, name: str, timeout_s: float) -> str:
        """Why the dependency does not answer; empty if it answers."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._checks[name]()
        except TimeoutError:
            return f"no answer within {timeout_s:g} s"
        except FeedmuxError as error:
            if error.reason not in (ErrorReason.SOURCE_UNAVAILABLE, ErrorReason.STATE_UNAVAILABLE):
                raise
            return error.message
        return ""

"""The deployment of the dead letters, and how it is found fit: apart from the sources, or one that the operator named.

In a deployment that tenants watch they could watch the letters of others. So the operator names such a deployment by
`dead_letters.source`, and the feeds of all sources that read it do not show the database of the letters.
"""

import asyncio
import logging
import random
from collections.abc import Mapping
from typing import Final

from pymongo.errors import OperationFailure, PyMongoError

from feedmux_server.core.check_result import CheckResult
from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.feeds.feed import Scope
from feedmux_server.core.limits.backoff import Backoff
from feedmux_server.source.deployment import Source
from feedmux_server.source.errors import UNAUTHORIZED
from feedmux_server.source.letters import Letters, LettersPlace

log = logging.getLogger(__name__)

CHECK: Final = "dead_letters"
"""The name of the check of `feedmux doctor`."""
PREPARE_S: Final = 60.0
_RETRY_FIRST_S: Final = 1.0
_RETRY_MAX_S: Final = 30.0
_VALIDATION_FAILED: Final = 121


class DeadLetters:
    """`letters`, once `run` has found that they may be used."""

    def __init__(self, deployment: Source, place: LettersPlace, source: str, sources: Mapping[str, Source]) -> None:
        """`source` is the one of `sources` whose deployment it is, empty for none."""
        self.deployment = deployment
        self._place = place
        self._sources = sources
        self._is_watched = bool(source)
        self._hidden_from = {source} if source else set[str]()
        self._elsewhere = set[str]()
        """Sources that were seen on another deployment: a server that cannot be reached is no longer known."""
        self._letters = deployment.letters(place)
        self.is_ready = False
        """Whether `prepare` has succeeded."""

    @property
    def letters(self) -> Letters:
        """Raises SOURCE_UNAVAILABLE while the collection is not known to be fit."""
        if self.is_ready and (watching := self._watched_by()):
            # That source was unavailable before.
            self.is_ready = False
            log.error("dead letters cannot be stored any more: %s", _unnamed(watching))
        if not self.is_ready:
            raise FeedmuxError(
                ErrorReason.SOURCE_UNAVAILABLE,
                "the collection for dead letters cannot be used; try again, and tell the operator if this stays so",
                retry_after_s=_RETRY_FIRST_S,
            )
        return self._letters

    def hidden_database(self, scope: Scope) -> str:
        """The database that a feed does not show; empty for none. Raises SOURCE_UNAVAILABLE for a feed that has a
        database of that name while it is not known whether it is the one."""
        source, database = scope.source, self._place.database
        if not self._is_watched or scope.database not in ("", database):
            return ""
        if source not in self._hidden_from:
            if self._is_here(source):
                self._hidden_from.add(source)
            elif source not in self._elsewhere and source in self._sources:
                if not (self._sources[source].nodes() and self.deployment.nodes()):
                    raise FeedmuxError(
                        ErrorReason.SOURCE_UNAVAILABLE,
                        f"it is not known yet whether the database {database!r} of this source holds dead letters,"
                        " which no feed shows; try again, and tell the operator if this stays so",
                        {"source": source},
                        retry_after_s=_RETRY_FIRST_S,
                    )
                self._elsewhere.add(source)
        return database if source in self._hidden_from else ""

    def shares(self) -> dict[str, float]:
        """How much of its bounds each tenant uses, as far as this process knows."""
        return self._letters.shares()

    async def run(self) -> None:
        """Prepare the collection, and try again until that succeeds. Then prepare it from time to time: if it was
        dropped or renamed, the next letter creates one without indexes, in which no letter would expire."""
        backoff = Backoff(_RETRY_FIRST_S, _RETRY_MAX_S, 2.0, 0.5)
        while True:
            delay_s = PREPARE_S
            try:
                await self.prepare()
            except FeedmuxError as error:
                if error.reason is ErrorReason.SOURCE_UNSUITABLE:
                    self.is_ready = False  # another collection has taken its place, or its indexes have changed
                if not self.is_ready:
                    log.error("dead letters cannot be stored now: %s", error)
                    delay_s = backoff.next_delay(random.random())
            await asyncio.sleep(delay_s)

    async def prepare(self) -> None:
        """Create the indexes. Raises SOURCE_UNSUITABLE if a source watches this deployment and none is named, or if the
        collection is not fit, and SOURCE_UNAVAILABLE."""
        await self._check_place()
        await self._letters.prepare()
        self.is_ready = True

    async def examine(self) -> list[CheckResult]:
        """Check for `feedmux doctor` whether letters can be written, with one document that is removed again."""
        where = f"{self._place.database}.{self._place.collection}"
        try:
            await self._check_place()
            if unfit := await self._letters.unfit():
                return [CheckResult.failed(CHECK, *unfit)]
            await self._letters.probe()
        except FeedmuxError as error:
            return [CheckResult.failed(CHECK, error.message, "Check [dead_letters] in the configuration")]
        except PyMongoError as error:
            cause = f"code {error.code}" if isinstance(error, OperationFailure) else type(error).__name__
            says = f"dead letters cannot be written to {where} ({cause})"
            return [CheckResult.failed(CHECK, says, self._advice(error))]
        return [CheckResult.ok(CHECK, f"dead letters can be written to {where}")]

    def _advice(self, error: PyMongoError) -> str:
        if not isinstance(error, OperationFailure):
            return "Check that its MongoDB runs, and the address in dead_letters.uri or in that of its source"
        if error.code == UNAUTHORIZED:
            return f"Give its user the role readWrite on the database {self._place.database}"
        if error.code == _VALIDATION_FAILED:
            return "Remove the validator of the collection (collMod): feedmux defines what it stores there"
        return "Check the collection and its deployment, by this code and the log of MongoDB"

    async def _check_place(self) -> None:
        await self.deployment.clock.operation_time()
        if watching := self._watched_by():
            raise FeedmuxError(ErrorReason.SOURCE_UNSUITABLE, _unnamed(watching))

    def _watched_by(self) -> str:
        """The source that reads this deployment although none is named; empty for none."""
        return "" if self._is_watched else next(filter(self._is_here, self._sources), "")

    def _is_here(self, name: str) -> bool:
        source = self._sources.get(name)
        return source is not None and not source.nodes().isdisjoint(self.deployment.nodes())


def _unnamed(source: str) -> str:
    return (
        f"the deployment of dead_letters.uri is that of source {source!r}, whose tenants could watch the letters. Set"
        f" dead_letters.source to {source!r} as well, or use another deployment"
    )

"""Checks pipelines of requests in a separate process, tenant by tenant, and remembers the verdicts.

A check of the largest pipeline takes a hundred milliseconds of Python or more, and on the event loop every session
would wait for it. A pipeline that is opened again and again is checked once.
"""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import bson

from feedmux_server.core.errors import ErrorReason, FeedmuxError
from feedmux_server.core.events.extended_json import pipeline_as_json
from feedmux_server.core.feeds.feed_check import FeedParts, check_parts
from feedmux_server.core.limits.fair_queue import FairQueue
from feedmux_server.workers import check_worker
from feedmux_server.workers.side_process import SideProcess, SideProcesses, SideProcessFailed

INLINE_BYTES: Final = 512
"""Pipelines up to this size are checked on the event loop, in half a millisecond at most."""
ANSWER_TIMEOUT_S: Final = 10.0
WAITING_BYTES_MAX: Final = 32 << 20
"""Bytes of requests that may wait for a check, of all tenants …"""
TENANT_WAITING_BYTES_MAX: Final = 4 << 20
"""… and of one."""
KNOWN_BYTES_MAX: Final = 32 << 20
"""Bytes of verdicts that may be remembered, of all tenants …"""
TENANT_KNOWN_BYTES_MAX: Final = 2 << 20
"""… and of one."""
RENDERED_CHARS_MAX: Final = 1 << 20
_OVERHEAD_BYTES: Final = 512

Charge = Callable[[float], None]
"""Called with the seconds of CPU that a tenant's request has cost the process."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a check: the pipeline as BSON, or why it is rejected; or of a rendering: the text."""

    pipeline: bytes = b""
    text: str = ""
    error: FeedmuxError | None = None

    @property
    def size(self) -> int:
        return len(self.pipeline) + len(self.text) + _OVERHEAD_BYTES


@dataclass(eq=False, slots=True)
class _Job:
    name: bytes
    tenant: str
    request: bytes
    charge: Charge
    verdict: "asyncio.Future[Verdict]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    waiting: int = 0
    """The number of waiting callers. Without callers the job is not done any more."""


class RequestChecks:
    """The checks of a server. End them with `close`."""

    def __init__(self, side_processes: SideProcesses = SideProcess) -> None:
        self._process = side_processes(check_worker.__name__, ANSWER_TIMEOUT_S)
        self._queue: FairQueue[_Job] = FairQueue()
        self._coming: dict[bytes, _Job] = {}
        self._waiting_bytes: Counter[str] = Counter()
        self._known = KnownVerdicts()
        self._working: asyncio.Task[None] | None = None

    async def check(self, parts: FeedParts, tenant: str, charge: Charge) -> bytes:
        """Return the pipeline as BSON. Raises what `check_parts` raises, and QUOTA_EXCEEDED when too many requests
        already wait."""
        if parts.size <= INLINE_BYTES:
            return check_parts(parts)
        request = {
            "pipeline": parts.pipeline,
            "json": parts.is_json,
            "collation": parts.collation,
            "comment": parts.comment,
            "bounded": parts.bounded,
        }
        verdict = await self._verdict(parts.digest(tenant), tenant, request, parts.size, charge)
        if verdict.error is not None:
            error = verdict.error  # copied: an exception that is raised twice gathers tracebacks
            raise FeedmuxError(error.reason, error.message, error.metadata, field=error.field)
        return verdict.pipeline

    async def render(self, pipeline: bytes, tenant: str, charge: Charge, chars_max: int = RENDERED_CHARS_MAX) -> str:
        """The stages of a BSON document `{pipeline: [stages]}` as relaxed Extended JSON, cut at `chars_max`."""
        if len(pipeline) <= INLINE_BYTES:
            return pipeline_as_json(pipeline)[:chars_max]
        name = FeedParts(pipeline).digest(f"render {chars_max} {tenant}")
        request = {"render": pipeline, "chars": chars_max}
        return (await self._verdict(name, tenant, request, len(pipeline), charge)).text

    @property
    def held_bytes(self) -> int:
        """Bytes of waiting pipelines and of remembered verdicts."""
        return self._known.size + self._waiting_bytes.total()

    async def close(self) -> None:
        """End the process; waiting callers get INTERNAL."""
        await self._process.close()
        if self._working is not None:
            await asyncio.wait([self._working])

    async def _verdict(self, name: bytes, tenant: str, request: dict[str, Any], size: int, charge: Charge) -> Verdict:
        """The verdict that is remembered, or the process's."""
        if (known := self._known.get(name)) is not None:
            return known
        job = self._coming.get(name)
        if job is None:
            self._check_room(tenant, size)
            job = self._coming[name] = _Job(name, tenant, bson.encode(request), charge)
            # The waiting callers may be gone.
            job.verdict.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._waiting_bytes[tenant] += len(job.request)
            self._queue.put(tenant, job)
            if self._working is None:
                self._working = asyncio.create_task(self._work(), name="request-checks")
        job.waiting += 1
        try:
            verdict = await asyncio.shield(job.verdict)
        finally:
            job.waiting -= 1
        self._known.put(name, tenant, verdict)
        return verdict

    def _check_room(self, tenant: str, size: int) -> None:
        mine, all_ = self._waiting_bytes[tenant], self._waiting_bytes.total()
        if mine + size > TENANT_WAITING_BYTES_MAX or all_ + size > WAITING_BYTES_MAX:
            raise FeedmuxError(
                ErrorReason.QUOTA_EXCEEDED,
                "too many pipelines are waiting to be checked; try again",
                {"quota": "checks"},
                retry_after_s=2.0,
            )

    async def _work(self) -> None:
        try:
            while self._queue:
                job = self._queue.get()
                try:
                    if job.waiting:
                        job.verdict.set_result(await self._answer(job))
                except Exception as error:  # noqa: BLE001 the waiting callers raise it
                    job.verdict.set_exception(error)
                finally:
                    # At once, and not in a callback: a caller that arrived in between would wait for a cancelled job.
                    del self._coming[job.name]
                    self._waiting_bytes[job.tenant] -= len(job.request)
                    if not self._waiting_bytes[job.tenant]:
                        del self._waiting_bytes[job.tenant]
                    job.verdict.cancel()  # no effect on a finished verdict
        finally:
            self._working = None

    async def _answer(self, job: _Job) -> Verdict:
        try:
            found = bson.decode((await self._process.ask(job.request))[0])
        except SideProcessFailed:
            job.charge(2 * ANSWER_TIMEOUT_S)
            raise
        job.charge(found["cpu_s"])
        if "error" not in found:
            return Verdict(found.get("pipeline", b""), found.get("text", ""))
        told = found["error"]
        return Verdict(
            error=FeedmuxError(ErrorReason(told["reason"]), told["message"], told["metadata"], field=told["field"])
        )


class KnownVerdicts:
    """The most recently used verdicts, bounded by bytes for each tenant and in total."""

    def __init__(self, most: int = KNOWN_BYTES_MAX, most_of_tenant: int = TENANT_KNOWN_BYTES_MAX) -> None:
        self._most = most
        self._most_of_tenant = most_of_tenant
        self._known: OrderedDict[bytes, tuple[str, Verdict]] = OrderedDict()
        self._by_tenant: dict[str, OrderedDict[bytes, None]] = {}
        self._bytes: Counter[str] = Counter()
        self.size = 0
        """The size of all verdicts in bytes."""

    def get(self, name: bytes) -> Verdict | None:
        found = self._known.get(name)
        if found is None:
            return None
        self._known.move_to_end(name)
        self._by_tenant[found[0]].move_to_end(name)
        return found[1]

    def put(self, name: bytes, tenant: str, verdict: Verdict) -> None:
        if name in self._known or verdict.size > self._most_of_tenant:
            return
        self._known[name] = tenant, verdict
        mine = self._by_tenant.setdefault(tenant, OrderedDict())
        mine[name] = None
        self._bytes[tenant] += verdict.size
        self.size += verdict.size
        while self._bytes[tenant] > self._most_of_tenant:
            self._drop(next(iter(mine)))
        while self.size > self._most:
            self._drop(next(iter(self._known)))

    def _drop(self, name: bytes) -> None:
        tenant, verdict = self._known.pop(name)
        self._bytes[tenant] -= verdict.size
        self.size -= verdict.size
        del self._by_tenant[tenant][name]
        if not self._by_tenant[tenant]:
            del self._by_tenant[tenant]
            del self._bytes[tenant]

"""A chunk that cannot be rendered. tests/integration/test_renderer.py tests the process that renders."""

import asyncio
from typing import cast

from feedmux_server.workers.rendering import FAILED_S, RELAXED, Renderer
from feedmux_server.workers.side_process import SideProcess, SideProcessFailed
from feedmux_server.workers.side_worker import Answer
from tests.integration.test_renderer import chunk_at, render
from tests.virtual_time import in_virtual_time


class DeadProcess:
    """Answers nothing."""

    held_bytes = 0
    asked = 0

    async def ask(self, head: bytes, data: bytes) -> Answer:
        self.asked += 1
        raise SideProcessFailed

    async def close(self) -> None:
        pass


@in_virtual_time
async def test_a_chunk_that_failed_is_tried_again_after_a_while() -> None:
    renderer, process = Renderer(lambda _: None), DeadProcess()
    renderer._process = cast(SideProcess, process)
    wanted = chunk_at(1)
    await render(renderer, wanted)
    await asyncio.sleep(FAILED_S - 1)
    assert wanted.chunk.render_error(RELAXED) is not None
    await asyncio.sleep(1)
    assert wanted.chunk.render_error(RELAXED) is None
    await render(renderer, wanted)
    assert process.asked == 2
    await renderer.close()

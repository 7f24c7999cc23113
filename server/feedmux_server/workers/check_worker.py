"""The process that checks and renders pipelines from clients, which may take long (`request_checks`).

Requests and answers are BSON documents. A check has `pipeline`, `json`, `collation`, `comment` and `bounded`; its
answer has `pipeline` or `error`. A rendering has `render`, a document `{pipeline: [stages]}`, and `chars`; its answer
has `text`. Each answer has its `cpu_s`.
"""

import os
import time
from typing import Any

import bson

from feedmux_server.core.errors import FeedmuxError
from feedmux_server.core.events.extended_json import pipeline_as_json
from feedmux_server.core.feeds.feed_check import FeedParts, check_parts
from feedmux_server.workers.side_worker import Answer, serve_requests


def answer(data: bytes) -> Answer:
    began_s = time.process_time()
    request: dict[str, Any] = bson.decode(data)
    made = _rendered(request) if "render" in request else _checked(request)
    return bson.encode({**made, "cpu_s": time.process_time() - began_s}), b""


def _checked(request: dict[str, Any]) -> dict[str, Any]:
    parts = FeedParts(
        request["pipeline"], request["json"], request["collation"], request["comment"], request["bounded"]
    )
    try:
        return {"pipeline": check_parts(parts)}
    except FeedmuxError as error:
        told = {"reason": error.reason.value, "message": error.message, "metadata": error.metadata}
        return {"error": {**told, "field": error.field}}


def _rendered(request: dict[str, Any]) -> dict[str, Any]:
    text, most = pipeline_as_json(request["render"]), request["chars"]
    return {"text": text if len(text) <= most else f"{text[:most]}… ({len(text)} characters)"}


def main() -> None:
    # Deliveries of the server beside this process come first.
    os.nice(5)
    serve_requests(answer)


if __name__ == "__main__":
    main()

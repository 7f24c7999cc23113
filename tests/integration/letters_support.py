"""Dead letters of a test, written as a group writes them."""

from typing import Any

import bson

from feedmux_server.core.events.dead_letter import dead_letter
from feedmux_server.rpc.convert import stored_content
from tests.integration.servers import Here

NOW_S = 1_900_000_000.0


def is_ready(here: Here) -> bool:
    assert here.server.service.letters is not None
    return here.server.service.letters.is_ready


async def put(here: Here, tenant: str, name: str, *numbers: int, **fields: Any) -> list[bytes]:
    """Letters as the group would write them now. Return their ids."""
    service, ids = here.server.service, []
    stored = stored_content((await service.store.get(tenant, name)).definition).feed
    key = service.access.key_of(await service.access.feed_of(stored, tenant), tenant)
    assert service.letters is not None
    for number in numbers:
        letter = dead_letter(
            bson.encode({"_id": {"_data": f"82{number:08x}"}, "documentKey": {"_id": number}, **fields}),
            tenant=tenant,
            subscription=name,
            stream_key=key.digest,
            attempts=5,
            reasons=(f"canary of {number}",),
            member="worker-1",
            cluster_time=5 << 32,
            now_s=NOW_S + number,
        )
        await service.letters.letters.insert([letter])
        ids.append(letter.id)
    return ids

"""What versions of MongoDB after 6.0 do differently for change streams, by their documents and tickets.

None of them can be run where these tests are developed (docs/compatibility.md). A run has the profile of its scenario.
"""

from dataclasses import dataclass
from typing import Any, Final

from bson.binary import UUID_SUBTYPE, Binary
from bson.timestamp import Timestamp


@dataclass(frozen=True, slots=True)
class Profile:
    """A version, or a deployment of it."""

    version: str
    shares_time: bool = False
    """The events of one `insertMany` have one cluster time, outside of any transaction (SERVER-77880). Those of a
    transaction have its number."""
    more_fields: bool = False
    """Fields that were optional or unknown are always there (SERVER-86688)."""
    early_marks: bool = False
    """The token of a batch may be before the batch's last event, in a sharded cluster (SERVER-135099)."""
    loses_lookups: bool = False
    """`updateLookup` may give null, although the document is there (SERVER-134970)."""
    idle_shard: bool = False
    """A sharded cluster with a shard that is not written to: nothing is shown before that shard's next no-op entry
    (SERVER-126545)."""


MONGO_8: Final = Profile("8.0.4", shares_time=True)
MONGO_8_2: Final = Profile("8.2.1", shares_time=True, more_fields=True)
MONGO_9: Final = Profile("9.0.1", shares_time=True, more_fields=True, early_marks=True, loses_lookups=True)
IDLE_SHARD: Final = Profile("8.0.4", shares_time=True, idle_shard=True)

_UUID: Final = Binary(bytes(range(16)), UUID_SUBTYPE)
_SESSION: Final = {"id": _UUID, "uid": bytes(32)}


def with_fields_of(profile: Profile, event: dict[str, Any], transaction: int) -> dict[str, Any]:
    """The event, without `_id`, with the fields that this version adds. `transaction`: its cluster time, or 0."""
    operation, time = event.pop("operationType"), event.pop("clusterTime")
    head: dict[str, Any] = {"operationType": operation, "clusterTime": time}
    if profile.more_fields:
        head["collectionUUID"] = _UUID
    head["wallTime"] = event.pop("wallTime")
    if transaction and profile.shares_time:
        head |= {"txnNumber": 1, "lsid": _SESSION}
        if profile.more_fields:
            head["commitTimestamp"] = Timestamp(transaction >> 32, transaction & 0xFFFF_FFFF)
    if profile.more_fields and "updateDescription" in event:
        event["updateDescription"] |= {"disambiguatedPaths": {"a.0": ["a", "0"]}}
    if profile.more_fields and operation == "drop":  # for all definitions of collections
        event |= {"nsType": "collection", "operationDescription": {"size": 0}}
    return head | event

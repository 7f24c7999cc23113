"""Offsets: a position in the feed as the JSON that Spark stores in its checkpoint.

Spark compares offsets as text, so the same position must always give the same text: keys are sorted, and the text
contains only facts about the position. An offset contains the cluster time, for people, and the position, for the
server.
"""

import base64
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from feedmux.feeds import Start
from feedmux.positions import FeedPosition
from feedmux_spark.errors import OptionError

_VERSION: Final = 1
_VERSION_COPYING: Final = 2
"""Of an offset within a copy of existing documents, which connectors of version 1 alone do not read."""


@dataclass(frozen=True, slots=True)
class Offset:
    """An offset in the feed: everything at or before it has been read."""

    position: bytes
    time: tuple[int, int] = (0, 0)
    """Cluster time: seconds since 1970 and the ordinal within the second."""
    gaps: int = 0
    """How often, up to here, changes were lost and the feed continued from the oldest change (failOnDataLoss=false)."""
    feed: bytes = b""
    """The fingerprint of the feed that was read up to here. Empty in checkpoints of connectors that wrote none."""
    copied: int | None = None
    """Within a copy of existing documents: how many have been read."""

    @classmethod
    def at(cls, feed_position: FeedPosition, feed: bytes, gaps: int = 0, copied: int | None = None) -> "Offset":
        return cls(feed_position.position, feed_position.time, gaps, feed, copied)

    @property
    def feed_position(self) -> FeedPosition:
        return FeedPosition(self.position, time=self.time)

    @property
    def restart_at(self) -> str:
        """The value of startingOffsets with which another query misses nothing, where the position is of no use."""
        return "snapshot" if self.copied is not None else shown_time(self.time).partition("/")[0]

    def as_json(self) -> dict[str, Any]:
        """The offset as Spark stores it."""
        content = {
            "clusterTime": shown_time(self.time),
            "gaps": self.gaps,
            "position": base64.b64encode(self.position).decode(),
            "version": _VERSION if self.copied is None else _VERSION_COPYING,
        }
        if self.copied is not None:
            content["copiedDocuments"] = self.copied
        if self.feed:
            content["feed"] = base64.b64encode(self.feed).decode()
        return dict(sorted(content.items()))

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Offset":
        """Parses a stored offset. Raises OptionError if it is not one."""
        version = content.get("version", _VERSION)
        if version not in (_VERSION, _VERSION_COPYING):
            raise OptionError(
                f"the offset has version {version!r}, but this connector supports no version after {_VERSION_COPYING}"
            )
        try:
            position = base64.b64decode(content["position"], validate=True)
            feed = base64.b64decode(content.get("feed", ""), validate=True)
            gaps = int(content.get("gaps", 0))
            copied = int(content["copiedDocuments"]) if version == _VERSION_COPYING else None
            time = _time(str(content["clusterTime"])) if "clusterTime" in content else (0, 0)
        except (KeyError, TypeError, ValueError, OverflowError):
            raise OptionError(
                'not an offset of feedmux. An offset is {"clusterTime": "…", "gaps": 0, "position": "…", "version": 1};'
                " `position` alone is enough"
            ) from None
        return cls(position, time, gaps, feed, copied)


def shown_time(time: tuple[int, int]) -> str:
    """`2026-11-21T15:00:00Z/3`: the third change of that second."""
    return f"{datetime.fromtimestamp(time[0], UTC):%Y-%m-%dT%H:%M:%SZ}/{time[1]}"


def _time(text: str) -> tuple[int, int]:
    moment, _, ordinal = text.partition("/")
    time = int(datetime.fromisoformat(moment).timestamp()), int(ordinal or 0)
    if not all(0 <= each < 1 << 32 for each in time):
        raise ValueError(f"{text} is not a cluster time")
    return time


def parse_start(text: str, option: str) -> Start:
    """Parses a value of startingOffsets or endingOffsets. Raises OptionError."""
    if text == "latest":
        return Start.latest()
    if text == "earliest":
        return Start.earliest()
    if text == "snapshot":
        return Start.snapshot()
    if text.lstrip().startswith("{"):
        try:
            return Start.position(Offset.from_json(json.loads(text)).position)
        except (ValueError, RecursionError) as error:
            raise OptionError(f"option {option} is not JSON: {error}") from None
        except OptionError as error:
            raise OptionError(f"option {option}: {error}") from None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        snapshot = " snapshot (streams only)," if option == "startingOffsets" else ""
        raise OptionError(
            f"option {option} must be latest, earliest,{snapshot} a time such as 2026-11-21T15:00:00Z, or an offset as"
            f" JSON, not {text!r}"
        ) from None
    if moment.tzinfo is None:
        raise OptionError(f"option {option} is a time without a time zone: write {moment.isoformat()}Z for UTC")
    return Start.at_time(moment)


def parse_begin(text: str) -> Offset | None:
    """The offset at which a copy of existing documents begins; None for any other text."""
    try:
        found = Offset.from_json(json.loads(text))
    except (ValueError, RecursionError, AttributeError, OptionError):
        return None
    return found if found.copied == 0 and found.time != (0, 0) else None

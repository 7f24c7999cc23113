"""The position at which reading begins, and how to ask MongoDB for it."""

from dataclasses import dataclass
from typing import Literal

from feedmux_server.core.positions.resume_token import ResumeToken

NativeStart = Literal["resume_after", "start_after"]


@dataclass(frozen=True, slots=True)
class JoinPoint:
    """The position where a subscriber wants to continue, and how to ask MongoDB for it."""

    place: ResumeToken
    exact: bool = False
    """The token came from exactly this stream key, so that resumeAfter accepts it."""
    native: NativeStart | None = None
    """Set for a token that the client gave: MongoDB's verdict on it is final."""
    from_before: bool = False
    """A position that is asked for by its time is asked for by the time before: where its time is that of the newest
    entry, MongoDB says otherwise not whether it has read it."""
    ends_event: bool = False
    """If the token is of a fragment: that was the last one of its event."""
    of_mongodb: bool = False
    """Set for a token that is not exact: MongoDB sent it in another feed of this scope, as the position's signature
    shows."""

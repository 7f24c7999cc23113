"""The errors that a Spark user sees: each message says what happened, and what to do next.

Spark shows the text of an exception and of its causes, so no message may contain a secret.
"""

from typing import Final

from feedmux import errors
from feedmux.errors import FeedmuxError

_MIRROR: Final = (
    "; into a mirror with the offset of feedmux_spark.positions.snapshot_offsets, which Mirror.sweep then takes"
)


class FeedmuxSparkError(Exception):
    """A query on the format `feedmux` cannot continue."""


class OptionError(FeedmuxSparkError):
    """An option, or the schema, is missing or wrong."""


def explained(
    error: FeedmuxError, *, endpoint: str, consumer_name: str = "", executor: str = "", restart_at: str = ""
) -> FeedmuxSparkError:
    """Converts a client error to an error with advice for the user.

    `executor` is the host of an executor that met the error, and empty on the driver; `restart_at` is the value of
    startingOffsets with which another query misses nothing after the checkpoint's offset, if one was used.
    """
    return FeedmuxSparkError(_advice(error, endpoint, consumer_name, executor, restart_at))


def _advice(error: FeedmuxError, endpoint: str, consumer_name: str, executor: str, restart_at: str) -> str:
    match error:
        case errors.HistoryLost():
            oldest = error.metadata.get("oldest_time")
            return (
                "Changes are lost: the position to read from has left MongoDB's oplog"
                f"{f', which now begins at {oldest}' if oldest else ''}. Either set failOnDataLoss=false to continue"
                " from the oldest available change, with the gap logged and counted in the offsets (not within a copy"
                " of existing documents); or read the existing documents again, with startingOffsets=snapshot, a new"
                f" checkpoint and consumerName{_MIRROR}. To prevent this, enlarge the oplog or run the query more"
                f" often. ({error})"
            )
        case errors.Unavailable() if executor:
            return (
                f"A Spark executor on host {executor!r} cannot use feedmux at {endpoint!r}, although the driver planned"
                " this batch there: each executor reads its slices from the server itself. Choose an endpoint that is"
                " reachable from every executor (localhost is the executor's own host), and check firewalls, the TLS"
                f" files and that the server is running. ({error})"
            )
        case errors.TimelineForked():
            common = error.metadata.get("last_common_time")
            return (
                "Changes are lost: MongoDB was restored, and does not have the history that was read since"
                f"{f' {common}' if common else ' the copy was made'}. What was written to the sink since then has not"
                " happened in MongoDB. Either set failOnDataLoss=false to continue from the oldest available change,"
                " with the gap logged and counted in the offsets (not within a copy of existing documents); or copy the"
                " collection again, over the table (Mirror.create with replace=True), and start with a new checkpoint,"
                f" consumerName and startingOffsets. ({error})"
            )
        case errors.Unavailable():
            return (
                f"feedmux at {endpoint!r}, or a service that it depends on, is unavailable: check the option endpoint"
                f" (host:port), the TLS options, and that the server is running. ({error})"
            )
        case errors.Unauthenticated():
            return f"feedmux at {endpoint!r} rejected the credentials: check the option token or tokenFile. ({error})"
        case errors.PermissionDenied():
            return (
                "The credentials do not permit reading this feed: check the options source, database and collection, or"
                f" ask the operator for a grant. ({error})"
            )
        case errors.SubscriptionExists():
            return (
                f"consumerName {consumer_name!r} is taken by a subscription of another feed: choose another"
                " consumerName; or, to keep the position and change the subscription to the new pipeline or options,"
                f" set onFeedChange=update. ({error})"
            )
        case errors.SubscriptionBusy():
            return (
                f"Another client reads under consumerName {consumer_name!r}"
                f" (owner {error.metadata.get('owner', 'unknown')!r}): stop it, or give this query its own name."
                f" ({error})"
            )
        case FeedmuxError(reason="SNAPSHOT_UNSUITABLE"):
            if error.metadata.get("kind") == "_id":
                return (
                    "A micro-batch of existing documents has no end: raise the options maxEventsPerTrigger and"
                    f" maxBytesPerTrigger. ({error})"
                )
            if error.metadata.get("kind") != "mode":
                return f"The existing documents cannot be read (startingOffsets=snapshot). ({error})"
            return (
                "Spark reads the existing documents of one collection, from servers that have this: set the option"
                " collection, or upgrade all replicas of feedmux; or choose another consumerName and startingOffsets,"
                f" or let another client read the subscription to the end of its copy. ({error})"
            )
        case FeedmuxError(reason="FEED_CHANGED"):
            return (
                "The feed changed between planning a batch and reading it: nothing of the batch was read. Restart the"
                f" query; at its start, it reports what to do. ({error})"
            )
        case errors.PositionInvalid():
            return (
                "The offset is not a position in this feed. A checkpoint is valid only for the source, database,"
                " collection and tenant with which it was made, and as long as the server has the key that signed its"
                " positions: the key is in Redis, and is lost if Redis loses its data before the servers restart."
                f"{_restart_advice(restart_at)} ({error})"
            )
        case errors.OptionRefused():
            return f"MongoDB rejected the pipeline or an option of the change stream. ({error})"
        case errors.NotFound():
            return (
                "feedmux does not know the requested source or subscription: check the options source and consumerName."
                f" ({error})"
            )
    return str(error)


def _restart_advice(restart_at: str) -> str:
    if not restart_at:
        return ""
    if restart_at == "snapshot":
        return (
            " The query has not read all existing documents: read them again, with startingOffsets=snapshot, a new"
            f" checkpoint and consumerName{_MIRROR}."
        )
    return (
        " To continue where this query was, start it with a new checkpoint, a new consumerName and startingOffsets"
        f" {restart_at}, the time of the checkpoint; the events of that second may come again."
    )

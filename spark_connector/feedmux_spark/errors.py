"""What a Spark user reads when something fails: each message says what happened, and what to do next.

Spark shows the text of an exception and of what caused it, so nothing here may hold a secret.
"""

from feedmux.errors import (
    FeedmuxError,
    HistoryLost,
    NotFound,
    OptionRefused,
    PermissionDenied,
    PositionInvalid,
    SubscriptionBusy,
    SubscriptionExists,
    Unauthenticated,
    Unavailable,
)


class FeedmuxSparkError(Exception):
    """A query on the format `feedmux` cannot go on."""


class OptionError(FeedmuxSparkError):
    """An option, or the schema, is missing or wrong."""


def explained(error: FeedmuxError, *, endpoint: str, consumer_name: str = "") -> FeedmuxSparkError:
    """The error for people, by its class."""
    return FeedmuxSparkError(_advice(error, endpoint, consumer_name))


def _advice(error: FeedmuxError, endpoint: str, consumer_name: str) -> str:
    match error:
        case HistoryLost():
            oldest = error.metadata.get("oldest_time")
            return (
                "Changes are lost: the place to read from has left MongoDB's oplog"
                f"{f', which now begins at {oldest}' if oldest else ''}. Either set failOnDataLoss=false to go on from"
                " the oldest change there is, with the gap logged and counted in the offsets; or copy the collection"
                " anew and start with a new checkpoint. A larger oplog, or a query that runs more often, keeps it from"
                f" happening again. ({error})"
            )
        case Unavailable():
            return (
                f"feedmux at {endpoint!r} cannot be reached, or what it depends on: check the option endpoint"
                f" (host:port), the TLS options, and that the server runs. ({error})"
            )
        case Unauthenticated():
            return f"feedmux at {endpoint!r} refused the credentials: check the option token or tokenFile. ({error})"
        case PermissionDenied():
            return (
                "These credentials may not read this feed: check source, database and collection, or ask the operator"
                f" for a grant. ({error})"
            )
        case SubscriptionExists():
            return (
                f"consumerName {consumer_name!r} is taken by a subscription of another feed: choose another"
                " consumerName, or, to give this one another pipeline or options and keep its place, set"
                f" onFeedChange=update. ({error})"
            )
        case SubscriptionBusy():
            return (
                f"Another client reads under consumerName {consumer_name!r}"
                f" (owner {error.metadata.get('owner', 'unknown')!r}): stop it, or give this query a name of its own."
                f" ({error})"
            )
        case FeedmuxError(reason="FEED_CHANGED"):
            return (
                "The feed changed between planning a batch and reading it: nothing of it was read. Restart the query;"
                f" what to do then is said at its start. ({error})"
            )
        case PositionInvalid():
            return (
                "The offset is not a place of this feed. A checkpoint serves only the source, database, collection and"
                f" tenant that it was made with. ({error})"
            )
        case OptionRefused():
            return f"MongoDB refused the pipeline or an option of the change stream. ({error})"
        case NotFound():
            return f"feedmux does not know what was asked for: check the options source and consumerName. ({error})"
    return str(error)

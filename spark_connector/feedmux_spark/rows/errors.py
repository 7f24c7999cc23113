"""The errors of converting received events to rows."""

from feedmux_spark.errors import FeedmuxSparkError, OptionError


class RowsError(FeedmuxSparkError):
    """The base of this package's errors."""


class InvalidEvents(RowsError):
    """The received bytes are not change events as MongoDB writes them."""


class SchemaRefused(RowsError, OptionError):
    """A schema that cannot be filled; the message says what to write instead."""


class TypeMismatch(RowsError):
    """A value does not fit its column, under `onTypeMismatch` fail, or the column may not be null."""

    def __init__(self, message: str, place: int | None = None) -> None:
        super().__init__(message)
        self.place = place
        """The offset of the value in the batch; None if there is no value."""

"""Failures as messages for people: the reason and the next step. Only `main` prints them."""

from errno import EDQUOT, EFBIG, EIO, ENOSPC
from typing import Final

from feedmux import errors
from feedmux.errors import FeedmuxError

SERVER_HINT = (
    "Check that the server is running (`feedmux dev` starts one), or name another with --endpoint or FEEDMUX_ENDPOINT."
)
WAITS_HINT = "The server may be waiting for MongoDB or Redis; `feedmux doctor` shows its health."
PORTS_HINT = "The data port is 7117 by default; operator (7118), health (7119) and metrics have separate ports."
UNWRITABLE: Final = (ENOSPC, EDQUOT, EFBIG, EIO)
"""Errors of an output: its device is full, or the user's share of it or of the file, or its terminal has gone."""
FAILED = 1
WRONG_USAGE = 2


class CliError(Exception):
    """A failure with its reason and, if the user can do something about it, a hint."""

    def __init__(self, message: str, hint: str = "", exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code


class Unreachable(CliError):
    """The server does not answer, and may do so later."""


class UsageError(CliError):
    """The arguments contradict each other or are incomplete."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint, WRONG_USAGE)


def is_unicode(text: str) -> bool:
    """Return whether an argument or a variable was text: Python keeps other bytes as surrogates."""
    return not any("\ud800" <= each <= "\udfff" for each in text)


def cannot_write(error: OSError) -> CliError:
    """Return the CliError for an output that cannot be written."""
    return CliError(f"the output cannot be written: {error.strerror}", "Free space, or write elsewhere.")


def as_cli_error(error: Exception, endpoint: str = "") -> CliError | None:
    """Return the CliError that explains an error; None for a defect, whose traceback is more useful."""
    if isinstance(error, CliError):
        return error
    if isinstance(error, FeedmuxError):
        return CliError(_reason(error, endpoint), _hint(error, endpoint))
    return None


def _reason(error: FeedmuxError, endpoint: str) -> str:
    if isinstance(error, errors.SnapshotUnsupported):
        return error.message
    if isinstance(error, errors.Unavailable) and not error.reason and endpoint:
        if error.status == "DEADLINE_EXCEEDED":
            return f"{endpoint} has not answered in time"
        return f"cannot reach {endpoint} ({cause_of(error)})"
    if error.status == "UNIMPLEMENTED" and not error.reason and endpoint:
        return f"{endpoint} is a gRPC server, but not a feedmux server's data port"
    return error.message or error.status


def cause_of(error: FeedmuxError) -> str:
    """Return why a connection failed. gRPC lists every address it tried; the last part is the reason."""
    return error.message.rpartition(": ")[2] or error.status


def _hint(error: FeedmuxError, endpoint: str) -> str:
    match error:
        case errors.SnapshotUnsupported():
            return ""
        case errors.Unavailable() if not error.reason:
            return WAITS_HINT if error.status == "DEADLINE_EXCEEDED" else SERVER_HINT
        case errors.SubscriptionNotFound():
            return "`feedmux subscriptions list` shows the existing ones."
        case errors.SubscriptionExists():
            return "`feedmux subscriptions get` shows it, `update` changes it, `delete` frees the name."
        case errors.SubscriptionBusy():
            return "Another client is reading it; its lease ends soon after that client disconnects."
        case errors.Fenced() if error.metadata.get("cause") == "DELETE":
            return "It was deleted; `feedmux subscriptions create` creates it again."
        case errors.HistoryLost():
            oldest = error.metadata.get("oldest_time")
            return f"Start at --start earliest{f' ({oldest})' if oldest else ''}, or at a later time."
        case errors.TimelineForked():
            common = error.metadata.get("last_common_time")
            return (
                f"Start at --start latest, earliest{f' or {common}' if common else ''}; move a subscription with"
                " `feedmux subscriptions seek`, not past its stored position if that is earlier."
            )
        case errors.FeedInvalidated():
            return "The collection or database was dropped or renamed; run the command again to start afresh."
        case errors.InternalError():
            found = error.metadata.get("correlation_id")
            return f"This is a defect of the server; search its log for {found}." if found else ""
    if error.status == "UNIMPLEMENTED" and not error.reason:
        return PORTS_HINT
    if error.reason == "SOURCE_NOT_FOUND":
        return "Name a source of the server's configuration with --source or FEEDMUX_SOURCE."
    return ""

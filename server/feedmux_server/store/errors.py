"""Turns exceptions of redis-py into STATE_UNAVAILABLE with a message that says what to do.

Invariant: of the texts of redis-py and Redis, only the error code leaves this module. Neighbours: `commands`, `checks`
and `connection`, which call redis-py.
"""

from typing import Final

from redis import exceptions as redis_errors
from redis.asyncio.sentinel import MasterNotFoundError

from feedmux_server.core.errors import ErrorReason, FeedmuxError

RETRY_AFTER_S: Final = 1.0

FAILURES: Final = (redis_errors.RedisError, redis_errors.RedisClusterException, OSError)
"""The exceptions that a call of redis-py may raise. That of a cluster without a reachable node is not a RedisError."""

# A server without TLS waits for the rest of what greets it by TLS, and one with TLS hangs up on everything else.
_TLS: Final = "redis.url begins with rediss exactly if Redis expects TLS"
_BY_CODE: Final = {
    "OOM": "Redis is out of memory and stores no positions: raise its maxmemory or free memory",
    "LOADING": "Redis is loading its data after a start; it will answer when that is done",
    "READONLY": "Redis is a read-only replica: point feedmux at the primary",
    "MISCONF": "Redis cannot write to its disk and refuses writes: free space on that disk, and check the log of Redis",
    "NOREPLICAS": "Redis reaches too few replicas and refuses writes: check min-replicas-to-write",
    "UNBLOCKED": "Redis was demoted to a replica while it waited for its replicas: the change may be made, and a"
    " failover could undo it; repeat the call (docs/redis.md)",
    "MASTERDOWN": "Redis is a replica without its primary: restore the primary, or point feedmux at it",
    "CLUSTERDOWN": "The Redis cluster is down: run `redis-cli cluster info`",
    "MOVED": "This Redis is one node of a cluster: begin redis.url with redis+cluster://",
    "CROSSSLOT": "This Redis is one node of a cluster: begin redis.url with redis+cluster://",
    "NOAUTH": "Redis wants a password: set it in redis.url or redis.password_file",
    "WRONGPASS": "Redis rejects the user or password: correct them in redis.url, or in redis.username_file and"
    " redis.password_file",
    "NOPASSWORD": "Redis has no password, and redis.url or redis.password_file has one: remove it, or set it in Redis",
    "NOPERM": "Redis denies feedmux's user a command or key: allow it on the keys of redis.key_prefix (see `ACL LOG`)",
    "NOCOMMAND": "Redis lacks a command that feedmux needs, as with rename-command: restore those that docs/redis.md"
    " names under Permissions",
    "BUSY": "Redis is busy with another client's script",
    "TIMEOUT": "Redis does not answer in time: check that it is running, not overloaded, and close to feedmux, and that"
    f" {_TLS}",
    "CONNECTION": f"Redis cannot be reached: check that it is running, that feedmux may connect to it, and that {_TLS}",
    "NOPRIMARY": "No reachable sentinel knows a primary with that name: run `redis-cli -p 26379 SENTINEL MASTERS`, and"
    f" check that {_TLS}",
    "CERTIFICATE": "The certificate of Redis is not trusted: set its authority in redis.ca_file, and check its names",
    "DATABASE": "Redis has no database of the number in redis.url: correct it, or raise `databases` in redis.conf",
    "LAYOUT": "No node of the Redis cluster reports the cluster's layout: check `redis-cli cluster info`, and that"
    f" {_TLS}",
}
"""Messages for conditions that concern all of Redis, not one key."""

_OF_ONE_KEY: Final = {
    "ASK": "A slot of the Redis cluster is being moved, and its new node does not take its keys: run `redis-cli"
    " cluster nodes`",
    "TRYAGAIN": "A slot of the Redis cluster is being moved; the call succeeds when its keys have moved",
    "WRONGTYPE": "{key} in Redis holds something that feedmux did not write: check it with TYPE, keep a copy, and run"
    " DEL, after which feedmux works again (docs/redis.md, Damaged subscriptions)",
}
"""Messages for conditions that concern one key."""
_NOPERM_IN_SCRIPT: Final = ("ACL failure in script", "The user executing the script can't")
"""What Redis 7 and Redis 6.2 say, without a code, if a script may not run one of its commands."""
_WORDS_CHARS_MAX: Final = 120


def code_of(error: Exception) -> str:
    """The code that Redis gave, or one of our own, such as TIMEOUT, CONNECTION or ERR."""
    if isinstance(error, (redis_errors.TimeoutError, TimeoutError)):
        return "TIMEOUT"
    if isinstance(error, MasterNotFoundError):
        return "CERTIFICATE" if _is_of_certificate(error.__cause__) else "NOPRIMARY"
    if isinstance(error, redis_errors.SlotNotCoveredError):
        return "CLUSTERDOWN"
    if isinstance(error, redis_errors.RedisClusterException):
        cause = code_of(error.__cause__) if isinstance(error.__cause__, Exception) else "ERR"
        return "LAYOUT" if cause in ("ERR", "CONNECTION") else cause
    if _is_of_certificate(error):
        return "CERTIFICATE"
    if isinstance(error, redis_errors.AuthenticationError) and "without any password" in str(error):
        return "NOPASSWORD"
    status = getattr(error, "status_code", None)
    # The status of a script that failed in Redis 6.2 is ERR; its text has the code.
    if isinstance(status, str) and status.isupper() and status != "ERR":
        return status
    if isinstance(error, redis_errors.ResponseError):
        text = str(error)
        if text.removeprefix("ERR ").startswith("Error running script "):
            # Redis 6.2 puts "…@user_script: LINE: -" before the error of a command in a script; Redis 7 does not.
            text = text.rpartition("@user_script:")[2].lstrip().partition(": ")[2].removeprefix("-")
        if any(words in text for words in _NOPERM_IN_SCRIPT):
            return "NOPERM"
        text = text.removeprefix("ERR ")
        if text.startswith("DB index is out of range"):
            return "DATABASE"
        if text.lower().startswith(("unknown command", "unknown redis command", "unknown subcommand")):
            return "NOCOMMAND"
        word = text.partition(" ")[0]
        return word if word.isalpha() and word.isupper() else "ERR"
    if isinstance(error, (redis_errors.ConnectionError, OSError)):
        return "CONNECTION"
    return "ERR"


def _is_of_certificate(error: BaseException | None) -> bool:
    return "CERTIFICATE_VERIFY_FAILED" in str(error)


def words_of(error: Exception) -> str:
    """What redis-py or Redis says, for the log, without what it quotes: that may be a command with its values."""
    words = next(iter(str(error).replace("`", "'").replace('"', "'").split("'")), "")[:_WORDS_CHARS_MAX]
    return f"{type(error).__name__}: {''.join(filter(str.isprintable, words)).strip()}"


def is_of_one_key(error: Exception) -> bool:
    """Whether the failure concerns one command or key only, so that other keys are worth trying."""
    return isinstance(error, redis_errors.ResponseError) and code_of(error) not in _BY_CODE


def state_unavailable(error: Exception, key: str = "A key of feedmux") -> FeedmuxError:
    """The error for the client, which says what is wrong and what to do. `key`: what the command was for."""
    code = code_of(error)
    unknown = "Redis rejected a command from feedmux; the log of the feedmux server has details"
    message = _BY_CODE.get(code) or _OF_ONE_KEY.get(code, unknown)
    message = message.replace("{key}", key)
    return FeedmuxError(ErrorReason.STATE_UNAVAILABLE, message, {"redis_error": code}, retry_after_s=RETRY_AFTER_S)

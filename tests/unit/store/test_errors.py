"""What the errors of Redis mean."""

from redis import exceptions
from redis.asyncio.sentinel import MasterNotFoundError
from redis.exceptions import ResponseError

from feedmux_server.store.errors import code_of, is_of_one_key, state_unavailable, words_of
from tests.tables import over


@over(
    ("text", "code"),
    [
        # As Redis 6.2 and 7 tell of a command that fails in a script.
        ("Error running script (call to f_0a): @user_script:9: @user_script: 9: -OOM command not allowed", "OOM"),
        ("Error running script (call to f_0a): @user_script:9: @user_script: 9: -READONLY You can't write", "READONLY"),
        ("Error running script (call to f_0a): @user_script:9: @user_script: 9: -MISCONF Redis is", "MISCONF"),
        ("Error running script (call to f_0a): @user_script:4: WRONGTYPE Operation against a key", "WRONGTYPE"),
        ("Error running script (call to f_0a): @user_script:9: user_script:9: attempt to index a nil value", "ERR"),
        ("OOM command not allowed when used memory > 'maxmemory'. script: 0a, on @user_script:9.", "OOM"),
    ],
)
def test_what_a_script_failed_with(text: str, code: str) -> None:
    error = ResponseError(text)
    assert code_of(error) == code
    # As redis-py 8 does: the first word of the answer.
    error.status_code = text.partition(" ")[0] if text.startswith("OOM") else "ERR"
    assert code_of(error) == code
    assert is_of_one_key(error) == (code in ("ERR", "WRONGTYPE"))


@over(
    ("error", "code"),
    [
        (TimeoutError(), "TIMEOUT"),
        (exceptions.TimeoutError(), "TIMEOUT"),
        (exceptions.ConnectionError("canary"), "CONNECTION"),
        (ConnectionResetError(), "CONNECTION"),
        (exceptions.ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] canary"), "CERTIFICATE"),
        (exceptions.AuthenticationError("AUTH <password> called without any password configured"), "NOPASSWORD"),
        (exceptions.RedisClusterException("canary"), "LAYOUT"),
        (exceptions.SlotNotCoveredError("canary"), "CLUSTERDOWN"),
        (MasterNotFoundError("canary"), "NOPRIMARY"),
        (ResponseError("UNBLOCKED force unblock from blocking operation, canary"), "UNBLOCKED"),
        (ResponseError("DB index is out of range"), "DATABASE"),
        (ResponseError("canary: no code"), "ERR"),
        (ResponseError("unknown command 'INFO', with args beginning with: 'canary'"), "NOCOMMAND"),
        (ResponseError("Unknown Redis command called from script script: 11d8, on @user_script:7."), "NOCOMMAND"),
        (ResponseError("ACL failure in script: User canary has no permissions to run the 'time' command"), "NOPERM"),
        (exceptions.RedisError("canary"), "ERR"),
    ],
)
def test_the_client_learns_the_code_and_what_to_do_but_not_the_text(error: Exception, code: str) -> None:
    told = state_unavailable(error)
    assert (told.metadata, told.retry_after_s) == ({"redis_error": code}, 1.0)
    assert "canary" not in told.message
    assert ("log of the feedmux server" in told.message) == (code == "ERR")


def test_a_cluster_fails_as_its_node_did() -> None:
    error = exceptions.RedisClusterException("no node")
    error.__cause__ = TimeoutError()
    assert code_of(error) == "TIMEOUT"


def test_the_words_of_an_error_quote_nothing() -> None:
    error = ResponseError("ERR unknown command 'EVALX', with args beginning with: 'canary'")
    assert words_of(error) == "ResponseError: ERR unknown command"
    assert words_of(exceptions.ClusterError("TTL exhausted.\n")) == "ClusterError: TTL exhausted."
    assert len(words_of(OSError("x" * 10_000))) < 200

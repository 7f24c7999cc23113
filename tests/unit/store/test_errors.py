"""What the errors of Redis mean."""

import pytest
from redis.exceptions import ResponseError

from feedmux_server.store.errors import code_of, is_of_one_key


@pytest.mark.parametrize(
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
    assert is_of_one_key(error) == (code in ("ERR", "WRONGTYPE"))

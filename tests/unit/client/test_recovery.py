"""How long a session waits before it tries again. The scenarios of `errors.yaml` show what it does about each error."""

from feedmux.recovery import Backoff


def test_backoff_doubles_up_to_a_bound_and_adds_what_the_server_asks() -> None:
    backoff = Backoff(1.0, 5.0, lambda: 0.5)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 2.5, 2.5]
    assert backoff.next_s(10.0) == 12.5
    backoff.reset()
    assert backoff.next_s() == 0.5
    backoff.lived(5.0)
    assert backoff.next_s() == 1.0
    backoff.lived(5.1)  # a busy stream that never idled
    assert backoff.next_s() == 0.5

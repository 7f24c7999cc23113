"""A dependency becomes unavailable or available only after several such answers in a row."""

from feedmux_server.core.readiness import Presence, ReadinessRules


def seen(presence: Presence, answers: str) -> str:
    """Feed check results into a readiness (`+` and `-`); returns the value of `there` after each."""
    states = []
    for answer in answers:
        presence.observe(answer == "+")
        states.append("+" if presence.there else "-")
    return "".join(states)


def test_it_takes_three_failures_in_a_row_to_go_and_two_successes_to_come_back() -> None:
    presence = Presence(ReadinessRules(failures=3, successes=2), there=True)
    assert seen(presence, "--+--+---") == "++++++++-"
    assert seen(presence, "+-+-++") == "-----+"


def test_a_change_is_told_once() -> None:
    presence = Presence(ReadinessRules(failures=1, successes=1), there=False)
    assert [presence.observe(there) for there in (False, True, True, False)] == [False, True, False, True]

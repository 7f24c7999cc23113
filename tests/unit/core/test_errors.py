"""The table of errors: each reason is one of the protocol's, and has the status that the protocol gives it."""

import re
from pathlib import Path

from feedmux_server.core.errors import _BY_STATUS, STATUS, ErrorReason, FeedmuxError, fenced_error
from feedmux_server.store.model import FenceCause
from tests.tables import over

PROTO = (Path(__file__).parents[3] / "proto/feedmux/v1/errors.proto").read_text()
REASON = re.compile(r"^  // ([A-Z_]+)\. (?:.*\n  //)*.*\n  ERROR_REASON_(\w+) =", re.MULTILINE)
"""A reason, with the status at the beginning of its comment."""


def test_reasons_and_their_statuses_are_those_of_the_protocol() -> None:
    promised = {reason: status for status, reason in REASON.findall(PROTO)}
    assert {reason.value: status for reason, status in STATUS.items()} == promised


@over("reason", ErrorReason)
def test_each_reason_has_one_status(reason: ErrorReason) -> None:
    assert [status for status, reasons in _BY_STATUS.items() if reason in reasons] == [FeedmuxError(reason, "").status]


def test_an_error_keeps_its_own_facts() -> None:
    facts = {"quota": "calls"}
    error = FeedmuxError(ErrorReason.QUOTA_EXCEEDED, "slow down", facts)
    facts.clear()
    assert (str(error), error.metadata) == ("slow down", {"quota": "calls"})


def test_who_loses_a_subscription_reads_why() -> None:
    assert len({fenced_error(cause).message for cause in FenceCause}) == len(FenceCause)
    assert fenced_error("TAKEOVER").metadata == {"cause": "TAKEOVER"}

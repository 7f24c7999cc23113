"""Errors of the operator port: which key, which port, and which option to change."""

import argparse
from typing import Any

import grpc

from feedmux.cli import operator
from feedmux.cli.failure import CliError
from tests.tables import over


class Failed:
    """A failed call."""

    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return "said"

    def trailing_metadata(self) -> tuple[Any, ...]:
        return ()


def failure(code: grpc.StatusCode, key: str | None = None) -> CliError:
    args = argparse.Namespace(operator_endpoint="unix:/here", operator_key=key)
    found = operator._failure(Failed(code), args, False)
    assert isinstance(found, CliError)
    return found


@over("code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED])
def test_a_rejected_key_is_told_apart_from_no_key(code: grpc.StatusCode) -> None:
    assert failure(code, "k").message == "the operator port unix:/here rejects this operator key"
    assert failure(code).message == "the operator port unix:/here wants the operator's key, and none was given"
    assert "FEEDMUX_OPERATOR_KEY or --operator-key" in failure(code).hint


def test_the_hints_are_those_of_the_operator_port() -> None:
    assert "not a feedmux operator port" in failure(grpc.StatusCode.UNIMPLEMENTED).message
    away = failure(grpc.StatusCode.UNAVAILABLE)
    assert away.message == "cannot reach unix:/here (said)"
    assert "--operator-endpoint" in away.hint
    assert " --endpoint" not in away.hint

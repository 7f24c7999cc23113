"""`feedmux tenants`: checks a tenants file before a server reads it, and shows what each tenant uses."""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feedmux.cli.connection import add_json_option
from feedmux.cli.failure import FAILED, CliError
from feedmux.cli.operator import add_operator_options, connected_operator
from feedmux.cli.terminal import Terminal, iso_time, print_json, say, size, table

if TYPE_CHECKING:
    from feedmux.v1 import operator_pb2
    from feedmux_server.tenants.model import TenantRecord

_NEAR = 0.8
"""The part of a quota from which its use is reported in a note."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    check = actions.add_parser(
        "check",
        help="check a tenants file",
        description="Checks a tenants file and reports its errors. Exit code 1 if the file is invalid.",
    )
    check.add_argument(
        "file", metavar="FILE", type=Path, help="the tenants file: YAML, or TOML if its name ends in .toml"
    )
    add_json_option(check)
    usage = actions.add_parser(
        "usage",
        help="show what each tenant uses of a server",
        description="Shows what each tenant uses of a server, and its share of the reads from MongoDB.",
    )
    usage.add_argument("--tenant", metavar="NAME", default="", help="show only this tenant")
    add_json_option(usage)
    add_operator_options(usage)


def run(args: argparse.Namespace) -> int:
    return _check(args) if args.action == "check" else _usage(args)


def _usage(args: argparse.Namespace) -> int:
    from feedmux.v1 import operator_pb2

    with connected_operator(args) as ask:
        answer = ask("ListTenants", operator_pb2.ListTenantsRequest(tenant=args.tenant))
    if args.json:
        print_json(
            {
                "since": iso_time(answer.since.ToDatetime(UTC)),
                "tenants": [_usage_json(each) for each in answer.tenants],
            }
        )
        return 0
    headers = (
        "TENANT",
        "SESSIONS",
        "SUBSCRIPTIONS",
        "SHARED READS",
        "ALONE",
        "EVENTS SENT",
        "BYTES",
        "READ FOR IT",
        "SHARE",
        "THROTTLED",
    )
    rows = [
        (
            each.tenant + ("" if each.configured else " (removed)"),
            each.open_sessions,
            each.subscriptions,
            each.shared_streams,
            each.exclusive_streams,
            each.events_sent,
            size(each.bytes_sent),
            size(each.upstream_bytes),
            f"{each.upstream_share:.0%}",
            f"{each.throttled.ToMilliseconds() / 1000:.0f} s",
        )
        for each in answer.tenants
    ]
    terminal = Terminal(sys.stdout)
    say(table(terminal, headers, rows))
    for tenant in answer.tenants:
        for each in tenant.quotas:
            if each.HasField("used") and each.used >= each.limit * _NEAR:
                note = f"tenant {tenant.tenant} uses {each.used:,} of {each.limit:,} of its quota {each.quota}"
                say(terminal.paint("note:", "yellow"), note)
    return 0


def _usage_json(tenant: operator_pb2.TenantUsage) -> dict[str, Any]:
    plain = {
        field.name: getattr(tenant, field.name) for field in tenant.DESCRIPTOR.fields if field.message_type is None
    }
    quotas = {
        each.quota: {"limit": each.limit} | ({"used": each.used} if each.HasField("used") else {})
        for each in tenant.quotas
    }
    return plain | {"quotas": quotas, "throttled_s": tenant.throttled.ToMilliseconds() / 1000}


def _check(args: argparse.Namespace) -> int:
    from feedmux_server.config.errors import ConfigError
    from feedmux_server.config.load import load_tenants

    try:
        tenants = load_tenants(args.file).records()
    except ConfigError as error:
        if args.json:
            print_json({"ok": False, "file": str(args.file), "problem": str(error), "tenants": []})
            return FAILED
        raise CliError(str(error), "docs/tenants.md describes every field.") from None
    warnings = [warning for tenant in tenants for warning in _warnings(tenant)]
    if args.json:
        print_json(
            {"ok": True, "file": str(args.file), "tenants": [_json(each) for each in tenants], "warnings": warnings}
        )
        return 0
    terminal = Terminal(sys.stdout)
    rows = [(each.name, len(each.api_keys), len(each.certificates)) for each in tenants]
    say(table(terminal, ("TENANT", "KEYS", "CERTIFICATES"), rows))
    for warning in warnings:
        say(terminal.paint("note:", "yellow"), warning)
    say(f"{args.file} is valid")
    return 0


def _warnings(tenant: TenantRecord) -> list[str]:
    """Return warnings about what is allowed but perhaps not intended."""
    found = []
    if not tenant.api_keys and not tenant.certificates:
        found.append(f"tenant {tenant.name} has no key and no certificate: only a JWT can authenticate it")
    found += [
        f"tenant {tenant.name}: the key {key.label or key.sha256[:12]} has expired"
        for key in tenant.api_keys
        if key.expires_s is not None and key.expires_s <= time.time()
    ]
    return found


def _json(tenant: TenantRecord) -> dict[str, Any]:
    return {"name": tenant.name, "api_keys": len(tenant.api_keys), "certificates": len(tenant.certificates)}

"""Describes all options, and writes a sample file."""

import json
import textwrap
from collections.abc import Collection
from pathlib import Path

from pydantic import (
    BaseModel,
    SecretStr,
)

from feedmux_server.config.server import SECTIONS, Config


def describe_options() -> str:
    """Describe every option with its default and its trade-off, for `feedmux serve --help` and the documentation."""
    lines: list[str] = []
    for name, kind in SECTIONS:
        lines.append(f"{name}: {_purpose(kind)}")
        lines += _described(kind, "  ")
        lines.append("")
    lines.append("At the top level:")
    lines += _described(Config, "  ", skip={name.partition(".")[0] for name, _ in SECTIONS})
    return "\n".join(lines)


def sample_config() -> str:
    """Return a commented TOML file: every option with its default, and options without a default to fill in."""
    lines = [
        "# feedmux serve --config THIS_FILE",
        "# Options that are commented out show their defaults. Environment variables override the file:",
        "# FEEDMUX_REDIS__URL is url in [redis], FEEDMUX_SOURCES__MAIN__URI is uri in [sources.main].",
        "",
        *_sample_of(Config, skip={name.partition(".")[0] for name, _ in SECTIONS}),
    ]
    for name, kind in SECTIONS:
        header = f"[{name.replace('<name>', 'main')}]"
        lines += ["", f"# {_purpose(kind)}", f"# {header}" if name in _OPTIONAL_SECTIONS else header, ""]
        lines += _sample_of(kind, required_commented=name in _OPTIONAL_SECTIONS)
    return "\n".join(lines) + "\n"


_OPTIONAL_SECTIONS = frozenset({"tls", "jwt", "dead_letters"})


_SAMPLE_VALUES = {
    "uri": "mongodb://localhost:27017/?replicaSet=rs0",
    "tenants_file": "tenants.yaml",
    "certificate_file": "server.pem",
    "key_file": "server.key",
    "client_ca_file": "clients-ca.pem",
    "ca_file": "redis-ca.pem",
    "username_file": "secrets/username",
    "password_file": "secrets/password",
    "sentinel_username_file": "secrets/sentinel-username",
    "sentinel_password_file": "secrets/sentinel-password",
    "issuer": "https://login.example.com/",
    "audience": "feedmux",
    "jwks_file": "jwks.json",
    "jwks_url": "https://login.example.com/jwks.json",
    "file": "/var/log/feedmux/audit.jsonl",
}


def _purpose(kind: type[BaseModel]) -> str:
    return " ".join((kind.__doc__ or "").split())


def _described(kind: type[BaseModel], indent: str, skip: Collection[str] = ()) -> list[str]:
    lines: list[str] = []
    for option, field in kind.model_fields.items():
        if option in skip:
            continue
        lines.append(f"{indent}{option} ({'required' if field.is_required() else f'default {_toml(field.default)}'})")
        lines += textwrap.wrap(field.description or "", 100, initial_indent=indent * 3, subsequent_indent=indent * 3)
    return lines


def _sample_of(kind: type[BaseModel], *, skip: Collection[str] = (), required_commented: bool = False) -> list[str]:
    lines: list[str] = []
    for option, field in kind.model_fields.items():
        if option in skip:
            continue
        lines += textwrap.wrap(field.description or "", 100, initial_indent="# ", subsequent_indent="# ")
        commented = required_commented or not field.is_required()
        value = _toml(_SAMPLE_VALUES.get(option, field.default))
        lines.append(f"{'# ' if commented else ''}{option} = {value}")
    return lines


def _toml(value: object) -> str:
    match value:
        case None:
            return "none"
        case tuple():
            return json.dumps(list(value))
        case SecretStr():
            return '""'
        case bool() | str() | Path():
            return json.dumps(value if isinstance(value, bool) else str(value))
    return str(value)

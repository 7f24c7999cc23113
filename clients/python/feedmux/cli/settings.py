"""The settings of a connection: from an option, else the context that --context names, else an environment variable,
else the context in use, else a default.

A context is a named TOML file of settings: `contexts/NAME.toml` in the folder `feedmux` of $XDG_CONFIG_HOME or
~/.config. The file `context` in that folder holds the name of the context in use.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from feedmux.cli.failure import CliError, UsageError, is_unicode
from feedmux.cli.reachability import endpoint

CONTEXT_VARIABLE: Final = "FEEDMUX_CONTEXT"
_SUFFIX: Final = ".toml"
_FILE_BYTES: Final = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting, under its name in a context; the option has the same name with dashes."""

    variable: str
    default: str | None = None
    parse: Callable[[str], Any] = str
    """Parses the value of a variable. Raises ArgumentTypeError."""
    kind: type = str
    """The type of the value in a context."""
    is_path: bool = False
    is_secret: bool = False


def _switch(text: str) -> bool:
    if text.lower() not in ("0", "1", "false", "true"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither 1 nor 0")
    return text.lower() in ("1", "true")


SETTINGS: Final[Mapping[str, Setting]] = {
    "endpoint": Setting("FEEDMUX_ENDPOINT", "localhost:7117", endpoint),
    "api_key": Setting("FEEDMUX_API_KEY", is_secret=True),
    "source": Setting("FEEDMUX_SOURCE", "main"),
    "operator_endpoint": Setting("FEEDMUX_OPERATOR_ENDPOINT", "localhost:7118", endpoint),
    "operator_key": Setting("FEEDMUX_OPERATOR_KEY", is_secret=True),
    "tls": Setting("FEEDMUX_USE_TLS", parse=_switch, kind=bool),
    "ca_file": Setting("FEEDMUX_CA_FILE", parse=Path, is_path=True),
    "certificate_file": Setting("FEEDMUX_CERTIFICATE_FILE", parse=Path, is_path=True),
    "key_file": Setting("FEEDMUX_KEY_FILE", parse=Path, is_path=True),
}


@dataclass(frozen=True, slots=True)
class Context:
    """A context as it is stored."""

    name: str
    settings: Mapping[str, Any]


def fill_in(args: argparse.Namespace, *, with_defaults: bool = True) -> None:
    """Set each of SETTINGS that the arguments have and no option has set. Raises CliError."""
    wanted = [name for name in SETTINGS if getattr(args, name, "") is None]
    given = {name: value for name in wanted if (value := _variable(name)) is not None}
    known = {name: getattr(args, name, None) for name in SETTINGS} | given
    context = chosen(args.context)
    # A context's key is sent only to that context's server, unless this very command names the context.
    if context is not None and (args.context or not _elsewhere(context, known)):
        stored = {name: context.settings[name] for name in wanted if name in context.settings}
        given = given | stored if args.context else stored | given
    elif context is not None:
        args.ignored_context = context.name
    for name in wanted:
        value = given.get(name)
        setattr(args, name, SETTINGS[name].default if value is None and with_defaults else value)


def given_in(args: argparse.Namespace, *, with_variables: bool) -> dict[str, Any]:
    """Return the settings given by options and variables, as a context stores them. Raises CliError."""
    found: dict[str, Any] = {}
    for name, setting in SETTINGS.items():
        value = getattr(args, name, None)
        if value is None and with_variables:
            value = _variable(name)
        if value is not None:
            found[name] = str(value.absolute()) if setting.is_path else value
    return found


def folder() -> Path:
    """Return the folder of the contexts. Raises CliError if there is no home directory."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base else Path.home() / ".config") / "feedmux"
    except RuntimeError:
        raise CliError(
            f"contexts need a home directory, and the user id {os.getuid()} has none",
            "Set XDG_CONFIG_HOME or HOME to a folder, or give the connection as options or variables.",
        ) from None


def names() -> list[str]:
    """Return the names of all contexts, sorted. Raises CliError."""
    contexts = folder() / "contexts"
    try:
        found = [path.name.removesuffix(_SUFFIX) for path in contexts.iterdir() if path.name.endswith(_SUFFIX)]
        return sorted(name for name in found if _NAME.fullmatch(name))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise CliError(f"{contexts} cannot be read: {error.strerror}") from None


def in_use() -> str | None:
    """Return the name that `feedmux context use` has set. None without a home directory that can be read.

    Commands that have all they need by options and variables work for every user id.
    """
    try:
        return _read(folder() / "context").strip() or None
    except (OSError, ValueError, CliError):
        return None


def chosen(option: str | None) -> Context | None:
    """Return the context of --context or FEEDMUX_CONTEXT, else the one in use. Raises CliError."""
    if option is not None:
        return load(option)
    name = os.environ.get(CONTEXT_VARIABLE) or in_use()
    return load(name) if name else None


def load(name: str) -> Context:
    """Load a context. Raises CliError for a context that does not exist, or whose file is invalid."""
    path = path_of(name)
    try:
        settings: dict[str, Any] = tomllib.loads(_read(path))
    except FileNotFoundError:
        close = get_close_matches(name, names(), 1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise CliError(
            f"context {name!r} does not exist",
            f"{hint}`feedmux context list` shows the existing ones, `feedmux context save {name}` creates it.",
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise CliError(f"context {name}: {path} cannot be read: {reason}") from None
    return Context(name, {key: _checked(name, path, key, value) for key, value in settings.items()})


def _checked(name: str, path: Path, key: str, value: Any) -> Any:
    if key not in SETTINGS:
        close = get_close_matches(key, SETTINGS, 1)
        hint = f"Did you mean {close[0]}?" if close else f"The settings are {', '.join(SETTINGS)}."
        raise CliError(f"context {name}: {path} has an unknown setting {key!r}", hint)
    setting = SETTINGS[key]
    of_its_kind = isinstance(value, setting.kind)
    if not of_its_kind:
        wanted = "true or false" if setting.kind is bool else "a string"
        raise CliError(f"context {name}: {key} in {path} is not {wanted}")
    if setting.is_path:
        return path.parent / value
    if setting.parse is endpoint:
        try:
            return endpoint(value)
        except argparse.ArgumentTypeError as error:
            raise CliError(f"context {name}: {key} in {path}: {error}") from None
    return value


def save(context: Context) -> None:
    """Store a context in a file that only its owner can read, because of the keys. Raises CliError."""
    lines = (f"{key} = {_toml(value)}\n" for key, value in context.settings.items())
    _write(path_of(context.name), "".join(lines))


def use(name: str | None) -> None:
    """Set the context of commands that name no context; None for no context. Raises CliError."""
    _write(folder() / "context", f"{load(name).name}\n" if name else "")


def path_of(name: str) -> Path:
    """Return a context's file. Raises UsageError for an invalid name."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot be a context's name: use up to 64 letters, digits, '.', '_' and '-', and begin with a"
            " letter or digit"
        )
    return folder() / "contexts" / f"{name}{_SUFFIX}"


def _variable(name: str) -> Any:
    setting = SETTINGS[name]
    # A value that was read from a file may end with a line break.
    text = os.environ.get(setting.variable, "").strip()
    if not text:
        return None
    if not is_unicode(text):
        raise UsageError(f"{setting.variable} is not UTF-8")
    try:
        return setting.parse(text)
    except argparse.ArgumentTypeError as error:
        raise UsageError(f"{setting.variable}: {error}") from None


def _elsewhere(context: Context, known: Mapping[str, Any]) -> bool:
    """Return whether an option or a variable names another server than the context."""
    return any(
        known[name] is not None and known[name] != context.settings.get(name, SETTINGS[name].default)
        for name in ("endpoint", "operator_endpoint")
    )


def _toml(value: str | bool) -> str:
    # A JSON string is a basic string of TOML, except for this one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _read(path: Path) -> str:
    """Return the text of a file. Raises OSError or ValueError, also for what has no end, as a pipe or a device."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("it is not a file")
        content = file.read(_FILE_BYTES + 1)
    if len(content) > _FILE_BYTES:
        raise ValueError(f"it is larger than {_FILE_BYTES // 1024} KiB")
    return content.decode("utf-8-sig")  # editors may put a mark at the beginning


def _write(path: Path, text: str) -> None:
    new = path.with_name(path.name + ".new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        new.touch(0o600)
        new.write_text(text, "utf-8")
        new.rename(path)
    except OSError as error:
        raise CliError(f"{path} cannot be written: {error.strerror}") from None

"""Reads configurations and tenants files, and names every mistake in them."""

import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

from pydantic import (
    BaseModel,
    ValidationError,
)
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from feedmux_server.config.errors import ConfigError, FileUnreadable
from feedmux_server.config.server import Config, ConfigWithoutEnvironment
from feedmux_server.config.tenants_file import TenantsFile, duplicates
from feedmux_server.yaml_with_lines import MarkedError, parse_yaml

S = TypeVar("S", bound=BaseModel)
_CHARACTERS_MAX: Final = 50_000_000
"""More than any tenants file needs. A device has no end."""


def load_config(path: Path | None) -> Config:
    """Raises ConfigError."""
    _check_environment()
    if path is None:
        return _build(Config, {}, "the environment")
    content, line = _read(path)
    return _build(Config, content, str(path), line)


def _check_environment() -> None:
    """Reject variables of unknown sections, which would be ignored. Clients' variables have no `__`."""
    strange = [
        f"  {name}: there is no section {section.lower()!r}{_meant(section.lower(), Config.model_fields, _HELP)}"
        for name in os.environ
        if name.upper().startswith("FEEDMUX_") and "__" in name
        if (section := name[len("FEEDMUX_") :].partition("__")[0]).lower() not in Config.model_fields
    ]
    if strange:
        raise ConfigError(_cannot_be_used("the environment", strange))


def load_tenants(path: Path) -> TenantsFile:
    """Raises ConfigError, which names the lines of a YAML file."""
    content, line = _read(path)
    file = _build(TenantsFile, content, str(path), line)
    found = [_told(place, problem, line) for place, problem in duplicates(file.tenants)]
    if found:
        raise ConfigError(_cannot_be_used(str(path), found))
    return file


Line = Callable[[Sequence[int | str]], int | None]


def _no_line(_: Sequence[int | str]) -> int | None:
    return None


def _read(path: Path) -> tuple[dict[str, Any], Line]:
    """Read a TOML (.toml) or YAML file, and return also the lines of its values. The ConfigError that it raises quotes
    nothing of the file."""
    line: Line = _no_line
    try:
        with path.open(encoding="utf-8-sig") as file:  # editors may put a mark at the beginning
            text = file.read(_CHARACTERS_MAX + 1)
        if len(text) > _CHARACTERS_MAX:
            raise ConfigError(f"{path} cannot be read: it has more than {_CHARACTERS_MAX:,} characters")
        if path.suffix == ".toml":
            content: object = tomllib.loads(text)
        else:
            marked = parse_yaml(text, exact={"match"})
            content, line = marked.content, marked.line
    except OSError as error:
        raise FileUnreadable(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} cannot be parsed: it is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} cannot be parsed: {error}") from None
    except MarkedError as error:
        raise ConfigError(f"{path} cannot be parsed: {error}") from None
    except RecursionError:
        raise ConfigError(f"{path} cannot be parsed: it is nested too deeply") from None
    if not isinstance(content, dict):
        raise ConfigError(f"{path} must have a mapping at its top level")
    return content, line


def make_config(values: dict[str, Any]) -> Config:
    """Build the configuration from `values` alone, and ignore the environment. Raises ConfigError."""
    return _build(ConfigWithoutEnvironment, values, "given")


_HELP = "`feedmux serve --help`"


def _build(kind: type[S], values: dict[str, Any], origin: str, line: Line = _no_line) -> S:
    try:
        return kind(**{str(name): value for name, value in values.items()})
    except SettingsError as error:
        raise ConfigError(_cannot_be_used("the environment", [_not_json(error)])) from None
    except ValidationError as error:
        guide = _HELP if issubclass(kind, Config) else "docs/tenants.md"
        found = error.errors(include_input=False)
        # pydantic does not count an entry that it cannot read, so the list may seem empty.
        problems = [
            _told(each["loc"], _problem(each, kind, guide), line)
            for each in found
            if each["type"] != "too_short" or not any(_is_inside(other["loc"], each["loc"]) for other in found)
        ]
        raise ConfigError(_cannot_be_used(origin, problems)) from None


def _not_json(error: SettingsError) -> str:
    """Name the variable, without its value, which may be a secret."""
    value = getattr(error.__cause__, "doc", None)
    names = [name for name, text in os.environ.items() if name.upper().startswith("FEEDMUX_") and text == value]
    return f'  {" or ".join(sorted(names)) or error}: it should be JSON: a list as ["a", "b"], or a mapping'


def _is_inside(place: Sequence[int | str], other: Sequence[int | str]) -> bool:
    return len(place) > len(other) and tuple(place[: len(other)]) == tuple(other)


def _problem(error: ErrorDetails, kind: type[BaseModel], guide: str) -> str:
    """Describe what is wrong, and add what to do where pydantic does not say it."""
    match error["type"]:
        case "extra_forbidden":
            return f"there is no such option{_meant(str(error['loc'][-1]), _options(kind, error['loc']), guide)}"
        case "missing":
            return f"it is required; {guide} describes it"
        case "tuple_type":
            return "it should be a list"
        case "model_type" | "model_attributes_type" | "dict_type":
            return "it should be a mapping of names to values"
        case "too_short":
            return f"it should have at least {error['ctx']['min_length']} entry"
    return error["msg"]


def _meant(name: str, known: Iterable[str], guide: str) -> str:
    close = difflib.get_close_matches(name, list(known), 1)
    return f"; did you mean {close[0]}?" if close else f"; {guide} lists all options"


def _options(kind: type[BaseModel], place: Sequence[int | str]) -> set[str]:
    """Return the options that there are where the last part of `place` is."""
    kinds = {kind}
    for part in place[:-1]:
        fields = [one.model_fields[str(part)] for one in kinds if part in one.model_fields]
        # A part that is no section is the number or the name of an entry, which has the options of its list.
        kinds = {each for field in fields for each in _models(field.annotation)} or kinds
    return {option for one in kinds for option in one.model_fields}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for each in get_args(annotation):
        yield from _models(each)


def _told(place: Sequence[int | str], problem: str, line: Line) -> str:
    at = line(place)
    path = ".".join(str(part) for part in place)
    return f"  {f'line {at}: ' if at else ''}{path}{': ' if path else ''}{problem.removeprefix('Value error, ')}"


def _cannot_be_used(origin: str, problems: Sequence[str]) -> str:
    return f"the configuration ({origin}) cannot be used:\n" + "\n".join(problems)

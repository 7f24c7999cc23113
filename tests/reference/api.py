"""docs/reference/api.md, from proto/feedmux/v1/*.proto and their comments."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)

from tests.reference.markdown import anchor, described, table

PROTO: Final = Path(__file__).parents[2] / "proto"
PACKAGE: Final = "feedmux.v1"
_HEAD: Final = """\
# API

All services, messages and enums of the package `{package}`; [The protocol](../protocol.md) explains how to use them.
Written by `{command}` from [`proto/feedmux/v1`](../../proto/feedmux/v1).

"""
Path_ = tuple[int, ...]
"""Where an element is in its file: numbers of fields and indices, as in SourceCodeInfo.Location."""
_MESSAGES, _ENUMS, _SERVICES = (
    FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER,
    FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER,
    FileDescriptorProto.SERVICE_FIELD_NUMBER,
)


def page(command: str) -> str:
    """The Markdown of the page."""
    files = [_File(each) for each in _definition().file]
    parts = [_HEAD.format(package=PACKAGE, command=command)]
    parts += [text for file in files for text in file.services()]
    for file in files:
        parts.append(f"## Types of {Path(file.file.name).name}\n\n")
        parts += file.types()
    return "".join(parts)


def _definition() -> FileDescriptorSet:
    """The files of the package, with their comments."""
    buf = Path(sys.executable).with_name("buf")
    command = [str(buf), "build", str(PROTO), "--exclude-imports", "--output", "-"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    return FileDescriptorSet.FromString(done.stdout)


class _File:
    """One file, as sections of the page."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self.file = file
        self._comments = {tuple(each.path): each.leading_comments for each in file.source_code_info.location}

    def services(self) -> Iterator[str]:
        for index, service in enumerate(self.file.service):
            yield self._service(service, (_SERVICES, index))

    def types(self) -> Iterator[str]:
        for index, message in enumerate(self.file.message_type):
            yield from self._message(message, message.name, (_MESSAGES, index))
        for index, enum in enumerate(self.file.enum_type):
            yield self._enum(enum, enum.name, (_ENUMS, index))

    def _comment(self, path: Path_, what: str) -> str:
        return described(self._comments.get(path), what)

    def _service(self, service: ServiceDescriptorProto, path: Path_) -> str:
        rows = [
            (
                f"`{method.name}`",
                _stream(method.client_streaming) + _link(method.input_type),
                _stream(method.server_streaming) + _link(method.output_type),
                self._comment((*path, service.METHOD_FIELD_NUMBER, index), f"{service.name}.{method.name}"),
            )
            for index, method in enumerate(service.method)
        ]
        return (
            f"## Service {service.name}\n\n{self._comment(path, service.name)}\n\n"
            f"{table(('method', 'request', 'response', 'description'), rows)}\n"
        )

    def _message(self, message: DescriptorProto, name: str, path: Path_) -> Iterator[str]:
        rows = [
            (
                str(field.number),
                f"`{field.name}`",
                _type(field),
                self._comment((*path, message.FIELD_FIELD_NUMBER, index), f"{name}.{field.name}"),
            )
            for index, field in enumerate(message.field)
        ]
        yield f"### {name}\n\n{self._comment(path, name)}\n\n"
        if rows:
            yield f"{table(('number', 'field', 'type', 'description'), rows)}\n"
        for index, oneof in enumerate(message.oneof_decl):
            of = [
                f"`{field.name}`"
                for field in message.field
                if field.HasField("oneof_index") and field.oneof_index == index and not field.proto3_optional
            ]
            if of:
                comment = self._comment((*path, message.ONEOF_DECL_FIELD_NUMBER, index), f"{name}.{oneof.name}")
                yield f"`{oneof.name}` is one of {', '.join(of)}. {comment}\n\n"
        for index, inner in enumerate(message.nested_type):
            yield from self._message(inner, f"{name}.{inner.name}", (*path, message.NESTED_TYPE_FIELD_NUMBER, index))
        for index, enum in enumerate(message.enum_type):
            yield self._enum(enum, f"{name}.{enum.name}", (*path, message.ENUM_TYPE_FIELD_NUMBER, index))

    def _enum(self, enum: EnumDescriptorProto, name: str, path: Path_) -> str:
        rows = [
            (
                str(value.number),
                f"`{value.name}`",
                self._comment((*path, enum.VALUE_FIELD_NUMBER, index), f"{name}.{value.name}"),
            )
            for index, value in enumerate(enum.value)
        ]
        return f"### {name}\n\n{self._comment(path, name)}\n\n{table(('number', 'value', 'description'), rows)}\n"


def _stream(is_stream: bool) -> str:
    return "stream of " if is_stream else ""


def _type(field: FieldDescriptorProto) -> str:
    label = ""
    if field.label == field.LABEL_REPEATED:
        label = "repeated "
    elif field.proto3_optional:
        label = "optional "
    if field.type_name:
        return label + _link(field.type_name)
    return f"{label}`{FieldDescriptorProto.Type.Name(field.type).removeprefix('TYPE_').lower()}`"


def _link(full_name: str) -> str:
    name = full_name.removeprefix(f".{PACKAGE}.")
    return f"[`{name}`](#{anchor(name)})" if name != full_name else f"`{full_name.removeprefix('.')}`"

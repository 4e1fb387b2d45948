"""Files that carry their own checksum, so that damage is noticed wherever they are read.

A file and its checksum are one file, written in one step: a process that dies cannot leave a checksum that belongs
to another version. Sealed JSON has the key ``xxh3_128`` with the checksum of all other keys; of JSON lines, each line
has it. Sealed text ends in a comment with the checksum of what stands before. Files of versions without checksums are
still read; callers say by a format version whether a checksum has to be there.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import pydantic

from ziggurat.core.digests import digest
from ziggurat.core.errors import shorten
from ziggurat.core.files import atomic_file, write_json
from ziggurat.core.untrusted import MAX_TEXT_BYTES, Damage, as_object, parse_json, read_bytes

SEAL = "xxh3_128"
"""The key of the checksum."""
_COMMENT = f"# {SEAL}: "

Declared = TypeVar("Declared")


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a JSON object with its checksum as the last key."""
    content = {key: value for key, value in values.items() if key != SEAL}
    return {**content, SEAL: _digest(content)}


def unsealed(values: dict[str, Any], where: str | Path, damage: Damage, *, required: bool = True) -> dict[str, Any]:
    """Returns a JSON object without its checksum, after comparing it.

    Args:
        values: the object as it was read.
        where: the file, for messages.
        damage: the errors to raise.
        required: whether the checksum has to be there.

    Raises:
        ZigguratError: of class ``damage.error``: the checksum is missing or another.
    """
    content = {key: value for key, value in values.items() if key != SEAL}
    if SEAL not in values:
        if required:
            raise damage.of(where, f"has no checksum (key {SEAL})")
    elif values[SEAL] != _digest(content):
        raise damage.of(where, "is damaged: its content differs from its checksum")
    return content


def write_sealed_json(path: Path, values: Mapping[str, Any]) -> None:
    """Writes a JSON object with its checksum, atomically."""
    write_json(path, sealed(values))


def read_sealed_json(
    path: Path, damage: Damage, *, required: bool = True, limit: int = MAX_TEXT_BYTES
) -> dict[str, Any]:
    """Returns the content of a file that :func:`write_sealed_json` wrote.

    Raises:
        ZigguratError: of class ``damage.error``: it is damaged, or none of that kind.
        FileNotFoundError: there is no such file.
    """
    values = as_object(parse_json(read_bytes(path, damage, limit=limit), path, damage), path, damage)
    return unsealed(values, path, damage, required=required)


def sealed_line(values: Mapping[str, Any]) -> str:
    """Returns one line of JSON with its checksum."""
    return json.dumps(sealed(values), ensure_ascii=False) + "\n"


def write_sealed_text(path: Path, text: str) -> None:
    """Writes text, such as YAML, in which ``#`` begins a comment, and a last line with its checksum, atomically."""
    text = text if text.endswith("\n") else f"{text}\n"
    with atomic_file(path) as temporary:
        temporary.write_text(f"{text}{_COMMENT}{digest(text.encode())}\n", encoding="utf-8")


def read_sealed_text(path: Path, damage: Damage, *, required: bool = True, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Returns the content of a file that :func:`write_sealed_text` wrote, without the checksum.

    Raises:
        ZigguratError: of class ``damage.error``: it is damaged, or has no checksum where one is required.
        FileNotFoundError: there is no such file.
    """
    data = read_bytes(path, damage, limit=limit)
    text, comment, found = data.rpartition(_COMMENT.encode())
    if not comment:
        if required:
            raise damage.of(path, f"has no checksum (a last line {_COMMENT.strip()})")
        return data
    if found.decode("ascii", "replace") != f"{digest(text)}\n":
        raise damage.of(path, "is damaged: its content differs from its checksum")
    return text


def declared(kind: type[Declared], values: Any, where: str | Path, damage: Damage) -> Declared:
    """Returns JSON values as ``kind``, a dataclass or another type of plain data, after checking all of them.

    A checksum says that a file is as it was written, not that it was written as expected: a file may come from another
    program, or have no checksum. Numbers must be numbers and text must be text; keys that ``kind`` lacks are ignored.

    Raises:
        ZigguratError: of class ``damage.error``: a value is missing or of another type; the message names it.
    """
    try:
        return _adapter(kind).validate_json(json.dumps(values), strict=True)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        place = ".".join(map(str, first["loc"]))
        if first["type"] == "missing":
            raise damage.of(where, f"lacks {place}") from None
        message = first["msg"].removeprefix("Input should be ")
        raise damage.of(
            where, f"{place + ': ' if place else ''}expected {message}, received {shorten(first['input'])}"
        ) from None


@functools.cache
def _adapter(kind: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(kind)


def _digest(values: Mapping[str, Any]) -> str:
    """Returns the checksum of a JSON object, which depends on its values alone, not on spaces or the order of keys."""
    text = json.dumps(json.loads(json.dumps(values)), sort_keys=True, separators=(",", ":"))
    return digest(text.encode())

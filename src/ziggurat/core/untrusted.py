"""The door for everything that is read from disk or network: JSON, YAML, safetensors and Arrow.

Nothing that is read is trusted. A file must be a regular file of bounded size and is opened without following a
symbolic link; JSON and YAML may be nested only so deep; a name that a file mentions must stay in that file's folder.
Whatever fails becomes an error of the caller's class that names the file. A missing file stays a
:class:`FileNotFoundError`, because callers differ in what that means.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_tensors

from ziggurat.core.errors import ZigguratError, shorten

MAX_TEXT_BYTES = 256 * 2**20
"""Largest JSON or YAML file."""
MAX_DEPTH = 100
"""Deepest nesting of JSON and YAML."""
MAX_NODES = 2_000_000
"""Most values in a YAML file, each alias counted as what it stands for."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What the errors about a damaged file look like.

    Attributes:
        error: the class of the errors.
        hint: what the user can do about it.
    """

    error: type[ZigguratError]
    hint: str

    def of(self, where: str | Path, fault: str) -> ZigguratError:
        """Returns the error for what was read from ``where``."""
        return self.error(f"{where}: {fault}", self.hint)


@contextlib.contextmanager
def opened(path: Path, damage: Damage, *, limit: int | None = None, follow: bool = False) -> Generator[BinaryIO]:
    """Opens a regular file for reading.

    Args:
        path: the file.
        damage: the errors to raise.
        limit: its greatest size in bytes; default: any.
        follow: whether ``path`` may be a symbolic link, as a file that the user names may be.

    Raises:
        ZigguratError: of class ``damage.error``: it is a link, a folder, a pipe or a device, too large, or unreadable.
        FileNotFoundError: there is no such file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except FileNotFoundError:
        raise
    except OSError as error:
        is_link = error.errno == errno.ELOOP and not follow
        fault = "is a symbolic link, which is not followed" if is_link else f"cannot be opened: {error.strerror}"
        raise damage.of(path, fault) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise damage.of(path, f"is {_kind(status.st_mode)}, not a file")
        if limit is not None and status.st_size > limit:
            raise damage.of(path, f"has {status.st_size:,} bytes; at most {limit:,} are read")
    except BaseException:
        os.close(descriptor)
        raise
    with os.fdopen(descriptor, "rb") as file:
        yield file


def read_bytes(path: Path, damage: Damage, *, limit: int = MAX_TEXT_BYTES, follow: bool = False) -> bytes:
    """Returns the content of a file of at most ``limit`` bytes.

    Raises:
        ZigguratError: as :func:`opened`, also for an error of the disk.
        FileNotFoundError: there is no such file.
    """
    with opened(path, damage, limit=limit, follow=follow) as file:
        try:
            data = file.read(limit + 1)
        except OSError as error:
            raise damage.of(path, f"cannot be read: {error.strerror}") from None
    if len(data) > limit:
        raise damage.of(path, f"grows while it is read, beyond {limit:,} bytes")
    return data


def read_json(path: Path, damage: Damage, *, limit: int = MAX_TEXT_BYTES, follow: bool = False) -> Any:
    """Returns the value of a JSON file; see :func:`parse_json`."""
    return parse_json(read_bytes(path, damage, limit=limit, follow=follow), path, damage)


def parse_json(data: bytes, where: str | Path, damage: Damage) -> Any:
    """Returns the value of UTF-8 JSON.

    Raises:
        ZigguratError: of class ``damage.error``: it is not JSON, has a key twice, or is nested too deep.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_without_repeated_keys)
    except RecursionError:
        raise damage.of(where, f"is nested deeper than {MAX_DEPTH} levels") from None
    except (ValueError, OverflowError) as error:
        raise damage.of(where, f"is not valid JSON: {_short(error)}") from None
    _check_depth(value, where, damage)
    return value


def read_json_object(
    path: Path, damage: Damage, *, limit: int = MAX_TEXT_BYTES, follow: bool = False
) -> dict[str, Any]:
    """Returns the value of a file with a JSON object.

    Raises:
        ZigguratError: as :func:`parse_json`, or it holds another kind of value.
        FileNotFoundError: there is no such file.
    """
    return as_object(read_json(path, damage, limit=limit, follow=follow), path, damage)


def as_object(value: Any, where: str | Path, damage: Damage) -> dict[str, Any]:
    """Returns ``value`` if it is a JSON object.

    Raises:
        ZigguratError: of class ``damage.error``: it is something else.
    """
    if not isinstance(value, dict):
        raise damage.of(where, f"expected a JSON object, received {shorten(value)}")
    return cast("dict[str, Any]", value)


def read_yaml(path: Path, damage: Damage, *, limit: int = MAX_TEXT_BYTES, follow: bool = False) -> Any:
    """Returns the value of a YAML file; only plain data is made, no Python objects.

    Raises:
        ZigguratError: of class ``damage.error``: it is not YAML, is nested too deep, or has too many values.
        FileNotFoundError: there is no such file.
    """
    return parse_yaml(read_bytes(path, damage, limit=limit, follow=follow), path, damage)


def parse_yaml(data: bytes, where: str | Path, damage: Damage) -> Any:
    """Returns the value of UTF-8 YAML; see :func:`read_yaml`."""
    try:
        value = YAML(typ="safe").load(data.decode())
    except RecursionError:
        raise damage.of(where, f"is nested deeper than {MAX_DEPTH} levels") from None
    except (YAMLError, ValueError, OverflowError, TypeError) as error:
        raise damage.of(where, f"is not valid YAML: {_short(error)}") from None
    _check_depth(value, where, damage)
    if _nodes(value, {}) > MAX_NODES:
        raise damage.of(where, f"has more than {MAX_NODES:,} values, counting each alias as what it stands for")
    return value


def read_tensors(path: Path, damage: Damage, *, limit: int | None = None) -> dict[str, npt.NDArray[Any]]:
    """Returns the arrays of a safetensors file, in memory.

    Args:
        path: the file.
        damage: the errors to raise.
        limit: its greatest size in bytes; default: any.

    Raises:
        ZigguratError: of class ``damage.error``: it is not a complete safetensors file.
        FileNotFoundError: there is no such file.
    """
    with opened(path, damage, limit=limit) as file:
        try:
            return load_tensors(file.read())
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise damage.of(path, f"is not a complete safetensors file: {_short(error)}") from None
        except OSError as error:
            raise damage.of(path, f"cannot be read: {error.strerror}") from None


def tensor_metadata(path: Path, damage: Damage) -> dict[str, str]:
    """Returns the metadata of a safetensors file; reads nothing else.

    Raises:
        ZigguratError: as :func:`read_tensors`.
        FileNotFoundError: there is no such file.
    """
    with opened(path, damage):
        try:
            with safe_open(path, "np") as file:
                return dict(file.metadata() or {})
        except (SafetensorError, OSError) as error:
            raise damage.of(path, f"is not a complete safetensors file: {_short(error)}") from None


def array(
    arrays: Mapping[str, npt.NDArray[Any]],
    name: str,
    dtype: npt.DTypeLike,
    ndim: int,
    where: str | Path,
    damage: Damage,
) -> npt.NDArray[Any]:
    """Returns the array ``name``, which must exist with this dtype and number of dimensions.

    Raises:
        ZigguratError: of class ``damage.error``: it is missing or another.
    """
    found = arrays.get(name)
    if found is None:
        raise damage.of(where, f"has no array {name!r}; it has {', '.join(sorted(arrays)) or 'none'}")
    if found.dtype != np.dtype(dtype) or found.ndim != ndim:
        expected = f"{np.dtype(dtype).name} with {ndim} dimensions"
        raise damage.of(
            where, f"array {name!r} is {found.dtype.name} with {found.ndim} dimensions, expected {expected}"
        )
    return found


@contextlib.contextmanager
def arrow_errors(where: str | Path, damage: Damage) -> Generator[None]:
    """Turns Arrow's errors about a damaged file or message into errors of class ``damage.error``."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError, EOFError, ValueError, StopIteration) as error:
        if isinstance(error, ZigguratError):
            raise
        raise damage.of(where, f"is damaged: {_short(error)}") from None


def child(folder: Path, name: Any, where: str | Path, damage: Damage) -> Path:
    """Returns ``folder / name`` for a file name that was read; a name that leads out of the folder is refused.

    Args:
        folder: the folder that the name must stay in.
        name: the value that was read.
        where: the file that mentions the name.
        damage: the errors to raise.

    Raises:
        ZigguratError: of class ``damage.error``: it is no plain file name.
    """
    return folder / file_name(name, where, damage)


def file_name(name: Any, where: str | Path, damage: Damage) -> str:
    """Returns ``name`` if it is a plain name of a file, without a path and without control characters.

    Raises:
        ZigguratError: of class ``damage.error``: it is something else.
    """
    is_plain = isinstance(name, str) and name not in {"", ".", ".."} and "/" not in name and len(name) <= 255
    if not is_plain or any(ord(character) < 32 or ord(character) == 127 for character in cast("str", name)):
        raise damage.of(where, f"names the file {shorten(name)}; a plain file name is allowed")
    return cast("str", name)


def is_plain_folder(path: Path) -> bool:
    """Returns whether ``path`` is a folder itself, rather than a symbolic link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} occurs twice")
    return values


def _check_depth(value: Any, where: str | Path, damage: Damage) -> None:
    """Refuses values that later code, which recurses, could not walk through; cycles of YAML aliases among them."""
    level: dict[int, Any] = {id(value): value}
    for _ in range(MAX_DEPTH + 1):
        level = {id(item): item for each in level.values() for item in _items(each) if isinstance(item, dict | list)}
        if not level:
            return
    raise damage.of(where, f"is nested deeper than {MAX_DEPTH} levels")


def _nodes(value: Any, known: dict[int, int]) -> int:
    """Counts the values in a value that is not nested too deep; ``known`` has the counts of those already walked."""
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in known:
        known[id(value)] = 1 + sum(_nodes(item, known) for item in _items(value))
    return known[id(value)]


def _items(value: Any) -> Any:
    return (
        cast("dict[Any, Any]", value).values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    )


def _kind(mode: int) -> str:
    kinds = (
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "something else")


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:199]}…"

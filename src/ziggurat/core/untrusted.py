"""The door for everything that is read from disk or network: JSON, YAML, safetensors and Arrow.

Nothing that is read is trusted. A file must be a regular file of bounded size and is opened without following a
symbolic link; JSON and YAML may be nested only so deep; a name that a file mentions must stay in that file's folder.
Whatever fails becomes an error of the caller's class that names the file. A missing file stays a
:class:`FileNotFoundError`, because callers differ in what that means.
"""

from __future__ import annotations

import contextlib
import copy
import errno
import functools
import json
import os
import re
import stat
import sys
import unicodedata
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from ruamel.yaml import YAML
from ruamel.yaml.composer import MaxDepthExceededError
from ruamel.yaml.constructor import ConstructorError, SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load as load_tensors

from ziggurat.core.control_group import most_bytes
from ziggurat.core.errors import INVISIBLE, ZigguratError, shorten

MAX_TEXT_BYTES = 256 * 2**20
"""Largest JSON file."""
MAX_YAML_BYTES = 4 * 2**20
"""Largest YAML file, which takes far longer to parse than JSON."""
_KEPT_YAML_BYTES = 64 * 2**10
"""Largest YAML text whose value is kept, so that it is parsed once a process."""
MAX_DEPTH = 100
"""Deepest nesting of JSON and YAML."""
MAX_NODES = 2_000_000
"""Most values in a YAML file, each alias counted as what it stands for."""
MAX_MERGED = 100_000
"""Most keys that a YAML file may take over from other sections by ``<<``."""
MAX_DIGITS = 400
"""Most characters of a number in YAML."""
_SMALL_BYTES = 2**28
"""Files up to this size are read without looking at the memory that is available."""
_HALF_CHARACTER = re.compile(rb"\\(?:u|U0000)[dD][89a-fA-F]")


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
def opened(
    path: Path, damage: Damage, *, limit: int | None = None, follow: bool = False, folder: int | None = None
) -> Generator[BinaryIO]:
    """Opens a regular file for reading.

    Args:
        path: the file.
        damage: the errors to raise.
        limit: its greatest size in bytes; default: any.
        follow: whether ``path`` may be a symbolic link, as a file that the user names may be.
        folder: descriptor of the folder that contains the file; ``path`` then only names it in messages, and no folder
            on the way to it is looked up again.

    Raises:
        ZigguratError: of class ``damage.error``: it is a link, a folder, a pipe or a device, too large, or unreadable.
        FileNotFoundError: there is no such file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except FileNotFoundError:
        raise
    except ValueError as error:
        raise damage.of(shorten(str(path), 300), f"cannot be opened: {error}") from None
    except OSError as error:
        is_link = error.errno == errno.ELOOP and not follow
        fault = "is a symbolic link, which is not followed" if is_link else f"cannot be opened: {error.strerror}"
        raise damage.of(path, fault) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise damage.of(path, f"is {kind_of_file(status.st_mode)}, not a file")
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
        return read_opened(file, path, damage, limit)


def read_opened(file: BinaryIO, path: Path, damage: Damage, limit: int | None = None) -> bytes:
    """Returns the rest of a file that :func:`opened` opened.

    Args:
        file: the file.
        path: its path, for messages.
        damage: the errors to raise.
        limit: how many bytes it may have in the end, even if it grows while it is read; default: any number.

    Raises:
        ZigguratError: of class ``damage.error``: it is larger than that, does not fit into memory, or cannot be read.
    """
    size = os.fstat(file.fileno()).st_size
    if size > _SMALL_BYTES and size > (available := most_bytes()):  # a sparse file may be larger than its disk
        raise damage.of(path, f"has {size:,} bytes; this process may use {available:,} bytes of memory")
    try:
        data = file.read(size + 1)
        while data and (limit is None or len(data) <= limit) and (more := file.read(2**20)):  # it has grown meanwhile
            data += more
    except OSError as error:
        raise damage.of(path, f"cannot be read: {error.strerror}") from None
    if limit is not None and len(data) > limit:
        raise damage.of(path, f"grows while it is read, beyond {limit:,} bytes")
    return data


def read_json(path: Path, damage: Damage, *, limit: int = MAX_TEXT_BYTES, follow: bool = False) -> Any:
    """Returns the value of a JSON file; see :func:`parse_json`."""
    return parse_json(read_bytes(path, damage, limit=limit, follow=follow), path, damage)


def parse_json(data: bytes, where: str | Path, damage: Damage) -> Any:
    """Returns the value of UTF-8 JSON.

    Raises:
        ZigguratError: of class ``damage.error``: it is not JSON, has a key twice, is nested too deep, or has text that
            no file can hold.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_without_repeated_keys)
    except RecursionError:
        raise damage.of(where, f"is nested deeper than {MAX_DEPTH} levels") from None
    except (ValueError, OverflowError) as error:
        raise damage.of(where, f"is not valid JSON: {_short(json_fault(error))}") from None
    _check_depth(value, where, damage)
    _check_text(value, data, where, damage)
    return value


def json_fault(error: BaseException) -> str:
    """Returns what is wrong with JSON that Python refused with this error."""
    if "int_max_str_digits" in str(error):
        return f"a whole number has more digits than the {sys.get_int_max_str_digits():,} that are allowed"
    return str(error)


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


def read_yaml(path: Path, damage: Damage, *, limit: int = MAX_YAML_BYTES, follow: bool = False) -> Any:
    """Returns the value of a YAML file; only plain data is made, no Python objects.

    Raises:
        ZigguratError: of class ``damage.error``: it is not YAML, is nested too deep, or has too many values.
        FileNotFoundError: there is no such file.
    """
    return parse_yaml(read_bytes(path, damage, limit=limit, follow=follow), path, damage)


def parse_yaml(data: bytes, where: str | Path, damage: Damage) -> Any:
    """Returns the value of UTF-8 YAML; see :func:`read_yaml`."""
    try:
        value = copy.deepcopy(_loaded_yaml(data)) if len(data) <= _KEPT_YAML_BYTES else _load_yaml(data)
    except (RecursionError, MaxDepthExceededError):
        raise damage.of(where, f"is nested deeper than {MAX_DEPTH} levels") from None
    except (YAMLError, ValueError, OverflowError, TypeError) as error:
        raise damage.of(where, f"is not valid YAML: {_short(error)}") from None
    _check_depth(value, where, damage)
    if _nodes(value, {}) > MAX_NODES:
        raise damage.of(where, f"has more than {MAX_NODES:,} values, counting each alias as what it stands for")
    _check_text(value, data, where, damage)
    return value


def _load_yaml(data: bytes) -> Any:
    yaml = YAML(typ="safe", pure=True)
    yaml.max_depth, yaml.Constructor = MAX_DEPTH + 1, _BoundedConstructor
    return yaml.load(data.decode())


@functools.lru_cache(maxsize=32)
def _loaded_yaml(data: bytes) -> Any:
    """Returns what :func:`_load_yaml` does, once for a text: the config of a run takes a tenth of a second."""
    return _load_yaml(data)


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
            return load_tensors(read_opened(file, path, damage, limit))
        except (SafetensorError, KeyError, ValueError, TypeError, OverflowError) as error:
            if isinstance(error, ZigguratError):
                raise
            raise damage.of(path, f"is not a complete safetensors file: {_short(error)}") from None


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
    """Returns ``name`` if it is a plain name of a file, without a path and without control or invisible characters.

    Raises:
        ZigguratError: of class ``damage.error``: it is something else.
    """
    is_plain = isinstance(name, str) and name not in {"", ".", ".."} and "/" not in name and len(name) <= 255
    if not is_plain or any(unicodedata.category(character) in INVISIBLE for character in cast("str", name)):
        raise damage.of(where, f"names the file {shorten(name)}; a plain file name is allowed")
    return cast("str", name)


def is_plain_folder(path: Path) -> bool:
    """Returns whether ``path`` is a folder itself, rather than a symbolic link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


class _BoundedConstructor(SafeConstructor):
    """Makes plain data of YAML, with bounds on what a short text can grow to: merged keys and long numbers."""

    def __init__(self, preserve_quotes: bool | None = None, loader: Any = None) -> None:
        super().__init__(preserve_quotes, loader)
        self._merged = 0

    def flatten_mapping(self, node: Any) -> Any:
        for key, value in cast("list[tuple[Node, Node]]", list(node.value)):
            if key.tag != "tag:yaml.org,2002:merge":
                continue
            for each in value.value if isinstance(value, SequenceNode) else (value,):
                if isinstance(each, MappingNode):
                    self.flatten_mapping(each)
                    self._merged += len(each.value)
                if self._merged > MAX_MERGED:
                    raise ConstructorError(None, None, f"more than {MAX_MERGED:,} keys are merged", node.start_mark)
        return super().flatten_mapping(node)

    def construct_number(self, node: Any) -> Any:
        if isinstance(node, ScalarNode) and len(node.value) > MAX_DIGITS:
            raise ConstructorError(None, None, f"a number has more than {MAX_DIGITS} characters", node.start_mark)
        is_whole = node.tag.endswith(":int")
        return self.construct_yaml_int(node) if is_whole else self.construct_yaml_float(node)


for _tag in ("int", "float"):
    _BoundedConstructor.add_constructor(f"tag:yaml.org,2002:{_tag}", _BoundedConstructor.construct_number)


def _without_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) != len(pairs):
        seen = set[str]()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {shorten(twice)} occurs twice")
    return values


def _check_depth(value: Any, where: str | Path, damage: Damage) -> None:
    """Refuses values that later code, which recurses, could not walk through; cycles of YAML aliases among them."""
    level: dict[int, Any] = {id(value): value}
    for _ in range(MAX_DEPTH + 1):
        level = {id(item): item for each in level.values() for item in _items(each) if isinstance(item, dict | list)}
        if not level:
            return
    raise damage.of(where, f"is nested deeper than {MAX_DEPTH} levels")


def _check_text(value: Any, data: bytes, where: str | Path, damage: Damage) -> None:
    """Refuses text with half a character, a lone surrogate, which escapes can make and nobody can print or store."""
    if _HALF_CHARACTER.search(data):
        try:
            json.dumps(value, ensure_ascii=False, default=str).encode()
        except (UnicodeEncodeError, TypeError):
            raise damage.of(where, "has text with half a character (a lone surrogate)") from None


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


def kind_of_file(mode: int) -> str:
    """Returns what a file of this mode is, as ``a folder``."""
    kinds = (
        (stat.S_ISREG, "a file"),
        (stat.S_ISDIR, "a folder"),
        (stat.S_ISFIFO, "a named pipe"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a device"),
        (stat.S_ISBLK, "a device"),
    )
    return next((name for test, name in kinds if test(mode)), "something else")


def _short(error: BaseException | str) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else f"{text[:199]}…"

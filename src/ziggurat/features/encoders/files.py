"""Saves and loads fitted encoders: ``table.<name>.json`` and, if there are arrays, ``table.<name>.safetensors``.

Their checksums are in ``transform.json`` (:mod:`ziggurat.features.saved_transform`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic_core import PydanticCustomError
from safetensors.numpy import save_file

from ziggurat.core.digests import FileChecksum, load_tensors
from ziggurat.core.errors import DataError, shorten
from ziggurat.core.files import atomic_file, write_json
from ziggurat.core.parts import built_in, built_in_names, imported_config
from ziggurat.core.untrusted import as_object, parse_json, read_bytes
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings
from ziggurat.features.encoders.encoders import EncoderConfig
from ziggurat.features.versions import DAMAGED

_REFERENCE = "import"
"""The JSON key that names the config class of an encoder from outside the package."""


def save_encoder(folder: Path, table: str, encoder: Encoder, reference: str | None = None) -> None:
    """Writes the encoder of ``table``; each file is complete or absent.

    Args:
        folder: folder of the transform.
        table: name of the encoder's table.
        encoder: the fitted encoder.
        reference: the import reference of its config class, if that is from outside the package.
    """
    figures, arrays = encoder.to_state()
    if arrays:
        with atomic_file(folder / encoder_file_names(table)[1]) as temporary:
            save_file(arrays, temporary)
    values = figures if reference is None else {_REFERENCE: reference, **figures}
    write_json(folder / encoder_file_names(table)[0], values)


def load_encoder(folder: Path, table: str, files: Mapping[str, FileChecksum] | None = None) -> Encoder:
    """Loads an encoder that :func:`save_encoder` wrote.

    Args:
        folder: folder of the transform.
        table: name of the encoder's table.
        files: the checksums of the folder's files; None for a transform of a version without them.

    Raises:
        DataError: a file is missing, damaged or of another version, or the encoder's class cannot be imported.
    """
    path = folder / encoder_file_names(table)[0]
    figures = encoder_settings(folder, table, files)
    kind = _config_class(path, figures).encoder_class()
    arrays = _load_arrays(folder, table, files)
    try:
        return kind.from_state(figures, arrays)
    except DataError as error:
        raise DataError(f"{path}: {error.problem}", error.hint or DAMAGED.hint) from None
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, pa.ArrowException) as error:
        raise DAMAGED.of(path, f"is not the state of such an encoder: {error!r:.200}") from None


def encoder_settings(folder: Path, table: str, files: Mapping[str, FileChecksum] | None = None) -> dict[str, Any]:
    """Returns the JSON that a table's encoder has saved: its ``name``, or ``import``, and what else it saves.

    Raises:
        DataError: the file is missing or damaged.
    """
    path = folder / encoder_file_names(table)[0]
    recorded = _recorded(files, path)
    try:
        data = read_bytes(path, DAMAGED) if recorded is None else recorded.read(path, DAMAGED)
    except FileNotFoundError:
        raise missing_file(path) from None
    return as_object(parse_json(data, path, DAMAGED), path, DAMAGED)


def arrays_checksum(folder: Path, table: str, files: Mapping[str, FileChecksum] | None = None) -> str:
    """Returns a checksum of the arrays that an encoder has saved; empty if there are none.

    Raises:
        DataError: the file is damaged.
    """
    path = folder / encoder_file_names(table)[1]
    if files is not None:
        return files[path.name].xxh3_128 if path.name in files else ""
    try:
        return FileChecksum.of(path, DAMAGED).xxh3_128
    except FileNotFoundError:
        return ""


def encoder_files(folder: Path, tables: Iterable[str]) -> dict[str, FileChecksum]:
    """Returns the files of these tables' encoders, with their checksums.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    found: dict[str, FileChecksum] = {}
    for table in sorted(tables):
        path, arrays = (folder / name for name in encoder_file_names(table))
        try:
            found[path.name] = FileChecksum.of(path, DAMAGED)
        except FileNotFoundError:
            raise missing_file(path) from None
        if arrays.exists():
            found[arrays.name] = FileChecksum.of(arrays, DAMAGED)
    return found


def encoder_file_names(table: str) -> tuple[str, str]:
    """Returns the names of the files of a table's encoder: of its JSON, and of its arrays, which it may lack."""
    return f"table.{table}.json", f"table.{table}.safetensors"


def missing_file(path: Path) -> DataError:
    """Returns the error for a file of a transform that does not exist."""
    return DataError(f"{path}: not found", "run `ziggurat prepare` first, or name the folder it wrote")


def _load_arrays(folder: Path, table: str, files: Mapping[str, FileChecksum] | None) -> dict[str, Any]:
    path = folder / encoder_file_names(table)[1]
    if files is not None and path.name not in files:
        return {}
    try:
        return load_tensors(path, _recorded(files, path), DAMAGED)
    except FileNotFoundError:
        return {}


def _recorded(files: Mapping[str, FileChecksum] | None, path: Path) -> FileChecksum | None:
    """Returns the recorded checksum of a file; None if there are no checksums.

    Raises:
        DataError: there are some, but none of this file.
    """
    if files is None:
        return None
    if path.name not in files:
        raise DAMAGED.of(path, "has no checksum in transform.json")
    return files[path.name]


def _config_class(path: Path, figures: Mapping[str, Any]) -> type[EncoderSettings]:
    if _REFERENCE in figures:
        try:
            return imported_config(figures[_REFERENCE], EncoderSettings, "encoder")
        except PydanticCustomError as error:
            raise DataError(
                f"{path}: {error.message()}", "install the package that contains it, or add its folder to PYTHONPATH"
            ) from None
    known = dict(zip(built_in_names(EncoderConfig), built_in(EncoderConfig, EncoderSettings), strict=True))
    name = figures.get("name")
    kind = known.get(name) if isinstance(name, str) else None
    if kind is None:
        raise DataError(f"{path}: unknown encoder {shorten(name)}; allowed: {', '.join(known)}", DAMAGED.hint)
    return kind

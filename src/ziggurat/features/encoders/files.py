"""Saves and loads fitted encoders: ``table.<name>.json`` and, if there are arrays, ``table.<name>.safetensors``.

Their checksums are in ``transform.json`` (:mod:`ziggurat.features.saved_transform`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy.typing as npt
import pyarrow as pa
from pydantic_core import PydanticCustomError
from safetensors.numpy import save_file

from ziggurat.core.config_places import IMPORT_KEY
from ziggurat.core.digests import FileChecksum, load_tensors
from ziggurat.core.errors import DataError, FeatureError, shorten
from ziggurat.core.files import atomic_file, json_text, new_file
from ziggurat.core.parts import built_in, built_in_names, imported_config
from ziggurat.core.untrusted import as_object, parse_json, read_bytes
from ziggurat.features.encoders.checks import checked_state, encoder_label
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings, Ids
from ziggurat.features.encoders.encoders import EncoderConfig
from ziggurat.features.encoders.origin import check_ids_of, check_version_of, origin_of, state_figures
from ziggurat.features.encoders.round_trip import SAVE_ALL, compare_restored, describe, made_up_values, spread
from ziggurat.features.versions import DAMAGED

_WRONG_STATE = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, pa.ArrowException)
"""What reading the state of another encoder raises."""
_VALUES = 32
"""How many known values, and how many others, are saved with an encoder from outside the package."""


def save_encoder(
    folder: Path,
    table: str,
    encoder: Encoder,
    config: EncoderSettings | None = None,
    values: pa.Array | None = None,
    *,
    in_use: bool = True,
) -> None:
    """Writes the encoder of ``table``; each file is complete or absent, unless the folder is not in use yet.

    Args:
        folder: folder of the transform.
        table: name of the encoder's table.
        encoder: the fitted encoder.
        config: its config; may be left out for a built-in encoder. Of one from outside the package, the import
            reference and the version are saved beside the state.
        values: some values. Of an encoder from outside the package, their ids are saved, and compared when it is
            loaded.
        in_use: whether others may read the folder now. If not, the caller ends with
            :func:`~ziggurat.core.files.sync_folder`.

    Raises:
        FeatureError: files cannot hold the state, or an id is outside the table.
    """
    where = f"table {table!r}" if config is None else encoder_label(table, config)
    figures, arrays = checked_state(encoder, where)
    write = atomic_file if in_use else new_file
    if arrays:
        with write(folder / encoder_file_names(table)[1]) as temporary:
            save_file(arrays, temporary)
    origin = {} if config is None or config.reference is None else origin_of(encoder, config, values, where)
    with write(folder / encoder_file_names(table)[0]) as temporary:
        temporary.write_text(json_text({**origin, **figures}), encoding="utf-8")


def save_checked(
    folder: Path, table: str, config: EncoderSettings, encoder: Encoder, known: pa.Array, ids: Ids, *, in_use: bool
) -> None:
    """Writes a fitted encoder, and compares it with what is read back.

    Args:
        folder: folder of the transform.
        table: name of the encoder's table.
        config: its config.
        encoder: the fitted encoder.
        known: values (n,) that it was fitted on.
        ids: the ids (n,) that it gave them.
        in_use: as for :func:`save_encoder`.

    Raises:
        FeatureError: the encoder that is read back gives another id, or a value has two ids, or none.
    """
    where = encoder_label(table, config)
    made_up = None if config.reference is None else made_up_values(known, config)
    values = None if made_up is None else pa.concat_arrays([spread(known, _VALUES), spread(made_up, _VALUES)])
    save_encoder(folder, table, encoder, config, values, in_use=in_use)
    try:
        restored = load_encoder(folder, table, fresh=True)
    except DataError as error:
        if config.reference is None:
            raise
        raise FeatureError(f"{where}: its saved state cannot be read back: {error.problem}", SAVE_ALL) from error
    compare_restored(encoder, restored, known, ids, made_up, where)


def load_encoder(
    folder: Path,
    table: str,
    files: Mapping[str, FileChecksum] | None = None,
    *,
    config: type[EncoderSettings] | None = None,
    fresh: bool = False,
) -> Encoder:
    """Loads an encoder that :func:`save_encoder` wrote.

    Args:
        folder: folder of the transform.
        table: name of the encoder's table.
        files: the checksums of the folder's files; None for a transform of a version without them.
        config: the class of its config; default: the one that its file names.
        fresh: whether this process has just saved it, and compares its ids itself.

    Raises:
        DataError: a file is missing, damaged or of another version, the encoder's class cannot be imported, or its code
            gives other ids than when it was fitted.
    """
    path = folder / encoder_file_names(table)[0]
    saved = encoder_settings(folder, table, files)
    kind = _config_class(path, saved) if config is None else config
    check_version_of(kind, saved, path, table)
    arrays = _load_arrays(folder, table, files)
    encoder = _restored(kind, saved, arrays, path)
    if not fresh:
        check_ids_of(encoder, saved, path, table)
    return encoder


def _restored(
    config: type[EncoderSettings], saved: Mapping[str, Any], arrays: dict[str, npt.NDArray[Any]], path: Path
) -> Encoder:
    try:
        return config.encoder_class().from_state(state_figures(saved), arrays)
    except DataError as error:
        raise DataError(f"{path}: {error.problem}", error.hint or DAMAGED.hint) from None
    except Exception as error:
        if config not in built_in(EncoderConfig, EncoderSettings):
            raise DataError(
                f"{path}: {saved.get(IMPORT_KEY, config.__qualname__)}: `from_state` fails on what `to_state` saved: "
                f"{describe(error)}",
                "restore the code that it was fitted with, or correct it, prepare and train again",
            ) from error
        if isinstance(error, _WRONG_STATE):
            raise DAMAGED.of(path, f"is not the state of such an encoder: {error!r:.200}") from None
        raise


def encoder_settings(folder: Path, table: str, files: Mapping[str, FileChecksum] | None = None) -> dict[str, Any]:
    """Returns the JSON that is saved for a table's encoder: its state, and the origin of one from outside the package.

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
    if IMPORT_KEY in figures:
        try:
            return imported_config(figures[IMPORT_KEY], EncoderSettings, "encoder")
        except PydanticCustomError as error:
            raise DataError(
                f"{path}: {error.message()}",
                "install the package that contains it, or add its folder to PYTHONPATH; it must have the "
                "class under this name",
            ) from None
    known = dict(zip(built_in_names(EncoderConfig), built_in(EncoderConfig, EncoderSettings), strict=True))
    name = figures.get("name")
    kind = known.get(name) if isinstance(name, str) else None
    if kind is None:
        raise DataError(f"{path}: unknown encoder {shorten(name)}; allowed: {', '.join(known)}", DAMAGED.hint)
    return kind

"""Saves and loads fitted encoders: ``table.<name>.json`` and, if there are arrays, ``table.<name>.safetensors``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError
from safetensors.numpy import load_file, save_file

from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, write_json
from ziggurat.core.parts import built_in, built_in_names, imported_config
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings
from ziggurat.features.encoders.encoders import EncoderConfig

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
        with atomic_file(folder / f"table.{table}.safetensors") as temporary:
            save_file(arrays, temporary)
    write_json(folder / f"table.{table}.json", figures if reference is None else {_REFERENCE: reference, **figures})


def load_encoder(folder: Path, table: str) -> Encoder:
    """Loads an encoder that :func:`save_encoder` wrote.

    Raises:
        DataError: a file is missing or of another version, or the encoder's class cannot be imported.
    """
    path = folder / f"table.{table}.json"
    figures, arrays = read_json(path), folder / f"table.{table}.safetensors"
    return (
        _config_class(path, figures).encoder_class().from_state(figures, load_file(arrays) if arrays.exists() else {})
    )


def _config_class(path: Path, figures: Mapping[str, Any]) -> type[EncoderSettings]:
    if _REFERENCE in figures:
        try:
            return imported_config(figures[_REFERENCE], EncoderSettings, "encoder")
        except PydanticCustomError as error:
            raise DataError(
                f"{path}: {error.message()}", "install the package that contains it, or add its folder to PYTHONPATH"
            ) from None
    known = dict(zip(built_in_names(EncoderConfig), built_in(EncoderConfig, EncoderSettings), strict=True))
    kind = known.get(figures["name"])
    if kind is None:
        raise DataError(f"{path}: unknown encoder {figures['name']!r}; allowed: {', '.join(known)}")
    return kind


def read_json(path: Path) -> dict[str, Any]:
    """Reads a JSON file of a fitted transform.

    Raises:
        DataError: the file is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: not found", "run `ziggurat prepare` first, or name the folder it wrote") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON ({error})", "delete the folder and run `ziggurat prepare` again") from None

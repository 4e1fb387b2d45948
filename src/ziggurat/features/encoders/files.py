"""One fitted encoder on disk: ``table.<name>.json`` and, where it has arrays, ``table.<name>.safetensors``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, write_json
from ziggurat.features.encoders.encoder import Encoder
from ziggurat.features.encoders.hashed import HashEncoder
from ziggurat.features.encoders.identity import IdentityEncoder
from ziggurat.features.encoders.vocabulary import VocabularyEncoder

_ENCODERS: dict[str, type[Encoder]] = {
    "vocabulary": VocabularyEncoder,
    "hash": HashEncoder,
    "identity": IdentityEncoder,
}


def save_encoder(folder: Path, table: str, encoder: Encoder) -> None:
    """Write the encoder of ``table``; each file is whole or not there."""
    figures, arrays = encoder.to_state()
    if arrays:
        with atomic_file(folder / f"table.{table}.safetensors") as temporary:
            save_file(arrays, temporary)
    write_json(folder / f"table.{table}.json", figures)


def load_encoder(folder: Path, table: str) -> Encoder:
    """The encoder that :func:`save_encoder` wrote.

    Raises:
        DataError: missing, or of another version.
    """
    figures = read_json(folder / f"table.{table}.json")
    path = folder / f"table.{table}.safetensors"
    kind = _ENCODERS.get(figures["name"])
    if kind is None:
        raise DataError(f"{path}: unknown encoder {figures['name']!r}; allowed: {', '.join(_ENCODERS)}")
    return kind.from_state(figures, load_file(path) if path.exists() else {})


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file of a fitted transform.

    Raises:
        DataError: missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: not found", "run `ziggurat prepare` first, or name the folder it wrote") from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}: not JSON ({error})", "delete the folder and run `ziggurat prepare` again") from None

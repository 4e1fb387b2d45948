"""What was learned, on disk: weights, and beside them where they are from, for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, write_json

VERSION = 2

Weights = dict[str, npt.NDArray[np.float32]]


def save_weights(path: Path, weights: Weights, origin: Mapping[str, Any]) -> None:
    """Write ``path`` and, beside it, ``origin`` as ``.json``."""
    with atomic_file(path) as temporary:
        save_file(weights, temporary)
    write_json(path.with_suffix(".json"), {"version": VERSION, **origin})


def load_weights(path: Path, mend: str) -> tuple[Weights, dict[str, Any]]:
    """The weights and the origin that :func:`save_weights` wrote.

    Raises:
        DataError: of a version that this ziggurat does not know; ``mend`` says how to make them anew.
    """
    origin: dict[str, Any] = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    version = origin.pop("version")
    if version != VERSION:
        raise DataError(f"{path}: learned weights of version {version}; this ziggurat reads {VERSION}", mend)
    return load_file(path), origin

"""Files of learned weights, with their origin in the same file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save

from ziggurat.core.errors import DataError, shorten
from ziggurat.core.files import atomic_file, write_json
from ziggurat.core.untrusted import Damage, array, as_object, parse_json, read_tensors, tensor_metadata

VERSION = 3
"""Version of the files, and of the features that the networks were fitted to."""

MAX_BYTES = 2**26
"""Largest file of learned weights; those that are fitted have some 100 kB."""

Weights = dict[str, npt.NDArray[np.float32]]


def save_weights(path: Path, weights: Weights, origin: Mapping[str, Any]) -> None:
    """Writes weights and origin to ``path``, and for users the origin also to a ``.json`` file of the same name."""
    origin = {"version": VERSION, **origin}
    with atomic_file(path) as temporary:
        temporary.write_bytes(save(weights, metadata={"origin": json.dumps(origin)}))
    write_json(path.with_suffix(".json"), origin)


def load_weights(path: Path, hint: str, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Weights, dict[str, Any]]:
    """Loads the weights and the origin saved by :func:`save_weights`.

    Args:
        path: the file.
        hint: what the user can do about a damaged file.
        shapes: the name and the shape of every weight.

    Raises:
        DataError: the file is damaged, of a version that this ziggurat does not know, or has other weights.
        FileNotFoundError: there is no such file.
    """
    damage = Damage(DataError, hint)
    text = tensor_metadata(path, damage).get("origin", "{}")
    origin = as_object(parse_json(text.encode(), path, damage), path, damage)
    version = origin.pop("version", "2 or older")
    if version != VERSION:
        raise damage.of(path, f"learned weights of version {str(version)[:60]}; this ziggurat reads {VERSION}")
    weights = read_tensors(path, damage, limit=MAX_BYTES)
    for name, shape in shapes.items():
        if array(weights, name, np.float32, len(shape), path, damage).shape != shape:
            raise damage.of(path, f"array {name!r} has shape {weights[name].shape}, expected {shape}")
    if weights.keys() != shapes.keys():
        raise damage.of(path, f"has the unknown array {shorten(min(weights.keys() - shapes.keys()))}")
    missing_number = next((name for name, values in weights.items() if np.isnan(values).any()), None)
    if missing_number is not None:
        raise damage.of(path, f"array {missing_number!r} has NaN")
    return weights, origin

"""Files of learned weights, with their origin in the same file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, write_json

VERSION = 3
"""Version of the files, and of the features that the networks were fitted to."""

Weights = dict[str, npt.NDArray[np.float32]]


def save_weights(path: Path, weights: Weights, origin: Mapping[str, Any]) -> None:
    """Writes weights and origin to ``path``, and for users the origin also to a ``.json`` file of the same name."""
    origin = {"version": VERSION, **origin}
    with atomic_file(path) as temporary:
        save_file(weights, temporary, metadata={"origin": json.dumps(origin)})
    write_json(path.with_suffix(".json"), origin)


def load_weights(path: Path, hint: str) -> tuple[Weights, dict[str, Any]]:
    """Loads the weights and the origin saved by :func:`save_weights`.

    Raises:
        DataError: the file is damaged, or of a version that this ziggurat does not know; ``hint`` says what to do.
    """
    try:
        with safe_open(path, "np") as file:
            origin: dict[str, Any] = json.loads((file.metadata() or {}).get("origin", "{}"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path}: damaged file of learned weights: {error}", hint) from None
    version = origin.pop("version", "2 or older")
    if version != VERSION:
        raise DataError(f"{path}: learned weights of version {version}; this ziggurat reads {VERSION}", hint)
    return weights, origin

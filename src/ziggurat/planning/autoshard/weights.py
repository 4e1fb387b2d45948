"""What was learned, on disk: weights, and in the same file where they are from."""

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
"""Of what lies in the files, and of the features that networks were fitted to."""

Weights = dict[str, npt.NDArray[np.float32]]


def save_weights(path: Path, weights: Weights, origin: Mapping[str, Any]) -> None:
    """Write ``path`` and, beside it for people, ``origin`` as ``.json``."""
    origin = {"version": VERSION, **origin}
    with atomic_file(path) as temporary:
        save_file(weights, temporary, metadata={"origin": json.dumps(origin)})
    write_json(path.with_suffix(".json"), origin)


def load_weights(path: Path, hint: str) -> tuple[Weights, dict[str, Any]]:
    """The weights and the origin that :func:`save_weights` wrote.

    Raises:
        DataError: damaged, or of a version that this ziggurat does not know; ``hint`` says how to make them anew.
    """
    try:
        with safe_open(path, "np") as file:
            origin: dict[str, Any] = json.loads((file.metadata() or {}).get("origin", "{}"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path}: learned weights that are damaged: {error}", hint) from None
    version = origin.pop("version", "2 or older")
    if version != VERSION:
        raise DataError(f"{path}: learned weights of version {version}; this ziggurat reads {VERSION}", hint)
    return weights, origin

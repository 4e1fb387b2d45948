"""Saves and loads the arrays of encoded features: ``encoded.<name>.safetensors``; their figures are in
``transform.json``, with the checksums of these files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from ziggurat.core.digests import FileChecksum, load_tensors
from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file
from ziggurat.features.encoders.category_numbers import CategoryEncoding, CategoryMap
from ziggurat.features.encoders.files import missing_file
from ziggurat.features.versions import DAMAGED


def category_file_name(feature: str) -> str:
    """Returns the name of the file of an encoded feature's arrays."""
    return f"encoded.{feature}.safetensors"


def save_category(folder: Path, feature: str, fitted: CategoryMap) -> dict[str, Any]:
    """Writes the arrays of an encoded feature; returns its figures, for ``transform.json``."""
    figures, arrays = fitted.to_state()
    with atomic_file(folder / category_file_name(feature)) as temporary:
        save_file(arrays, temporary)
    return figures


def load_category(
    folder: Path,
    feature: str,
    encoding: CategoryEncoding,
    figures: Mapping[str, Any],
    files: Mapping[str, FileChecksum],
) -> CategoryMap:
    """Loads the map of an encoded feature.

    Args:
        folder: folder of the transform.
        feature: the name of the feature.
        encoding: its encoding.
        figures: what :func:`save_category` returned.
        files: the checksums of the folder's files.

    Raises:
        DataError: the file is missing, damaged, of another version, or not that of this encoding.
    """
    path = folder / category_file_name(feature)
    if path.name not in files:
        raise DAMAGED.of(path, "has no checksum in transform.json")
    try:
        arrays = load_tensors(path, files[path.name], DAMAGED)
    except FileNotFoundError:
        raise missing_file(path) from None
    try:
        return CategoryMap.from_state(encoding, figures, arrays)
    except DataError as error:
        raise DataError(f"{path}: {error.problem}", error.hint or DAMAGED.hint) from None


def category_files(folder: Path, features: Iterable[str]) -> dict[str, FileChecksum]:
    """Returns the files of these encoded features, with their checksums.

    Raises:
        DataError: a file is missing or cannot be read.
    """
    found: dict[str, FileChecksum] = {}
    for feature in sorted(features):
        path = folder / category_file_name(feature)
        try:
            found[path.name] = FileChecksum.of(path, DAMAGED)
        except FileNotFoundError:
            raise missing_file(path) from None
    return found

"""Encoders from outside the package whose code may have changed since a transform was fitted with them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ziggurat.core.untrusted import is_plain_folder
from ziggurat.features.config import FeatureConfig
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.features.tables import resolve_tables


def check_outside_encoders(folder: Path, features: Sequence[FeatureConfig]) -> None:
    """Checks that the code of encoders from outside the package is still that with which a transform was fitted.

    Args:
        folder: the folder of the saved transform; if there is none, nothing is checked.
        features: the features of the config. Without such an encoder among them, nothing is read.

    Raises:
        DataError: an encoder is of another version now, gives other ids, or cannot be imported; or a file is damaged.
    """
    if not _tables(features) or not is_plain_folder(folder):
        return
    saved = SavedTransform.open(folder)
    for table in _tables(saved.features):
        saved.encoder(table)


def _tables(features: Sequence[FeatureConfig]) -> list[str]:
    return [name for name, table in resolve_tables(features).items() if table.encoder.reference is not None]

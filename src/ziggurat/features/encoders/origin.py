"""What is saved beside the state of an encoder from outside the package, to recognise its code when it is loaded.

The JSON of such an encoder has, besides its state: ``import``, the reference of its class; ``import_version``, the
version of that; and ``import_ids``, some values with the ids that they had. Files of earlier versions have only the
reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.core.config_places import IMPORT_KEY
from ziggurat.core.errors import DataError, shorten
from ziggurat.features.encoders.checks import RESERVED, checked_ids, checked_rows
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings
from ziggurat.features.encoders.round_trip import describe, first_difference, ids_of_any
from ziggurat.features.versions import DAMAGED

_, _VERSION, _IDS = RESERVED
_OTHER_IDS = (
    "restore the code that it was fitted with. If the ids are meant to change, raise `version` in its Config, prepare "
    "and train again. If they change from process to process, as Python's hash() of a text does, use another hash"
)


def origin_of(encoder: Encoder, config: EncoderSettings, values: pa.Array | None, where: str) -> dict[str, Any]:
    """Returns what to save beside the state of a fitted encoder.

    Args:
        encoder: the encoder, from outside the package.
        config: its config.
        values: values whose ids to save; None: none.
        where: the encoder, for messages.

    Raises:
        FeatureError: a value has no id in the table.
    """
    origin: dict[str, Any] = {IMPORT_KEY: config.reference, _VERSION: config.version}
    if values is not None and len(values):
        ids = ids_of_any(encoder, values, checked_rows(encoder, where), where)
        origin[_IDS] = {"values": values.to_pylist(), "ids": ids.tolist()}
    return origin


def state_figures(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the state's own part of the JSON that is saved for an encoder."""
    return {key: value for key, value in saved.items() if key not in RESERVED}


def same_fit(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    """Returns whether two encoders have the same JSON, whatever values their ids were saved of.

    A version that a file of an earlier version lacks counts as the same.
    """
    ours, theirs = ({key: value for key, value in saved.items() if key != _IDS} for saved in (first, second))
    if not (_VERSION in ours and _VERSION in theirs):
        ours, theirs = ({key: value for key, value in saved.items() if key != _VERSION} for saved in (ours, theirs))
    return ours == theirs


def check_version_of(config: type[EncoderSettings], saved: Mapping[str, Any], path: Path, table: str) -> None:
    """Compares the version with which an encoder was fitted with that of the code.

    Raises:
        DataError: they differ.
    """
    fitted = saved.get(_VERSION, config.version)
    if fitted != config.version:
        raise DataError(
            f"{path.parent}: table {table!r} was fitted by version {shorten(fitted)} of {saved[IMPORT_KEY]}, "
            f"which is now version {config.version}",
            f"restore the code of version {shorten(fitted)}, or prepare and train again, into a new run folder (--run)",
        )


def check_ids_of(encoder: Encoder, saved: Mapping[str, Any], path: Path, table: str) -> None:
    """Compares the ids of some values with those that they had when the encoder was fitted.

    Raises:
        DataError: one differs, or cannot be had any more.
    """
    if _IDS not in saved:
        return
    values, before = _recorded(saved[_IDS], path)
    where = f"{path.parent}: table {table!r}: {saved[IMPORT_KEY]}"
    try:
        after = checked_ids(encoder.transform(values), values, checked_rows(encoder, where), where)
    except Exception as error:
        raise DataError(f"{where}: has no ids for values that had some: {describe(error)}", _OTHER_IDS) from error
    position = first_difference(before, after)
    if position is not None:
        raise DataError(
            f"{where}: the value {shorten(values[position].as_py())} had the id {before[position]} when it was fitted, "
            f"it has {after[position]} now, although the version is the same",
            _OTHER_IDS,
        )


def _recorded(found: Any, path: Path) -> tuple[pa.Array, list[int]]:
    """Returns the saved values and their ids.

    Raises:
        DataError: they are damaged.
    """
    values, ids = (found.get("values"), found.get("ids")) if isinstance(found, dict) else (None, None)
    if not isinstance(values, list) or not isinstance(ids, list) or len(values) != len(ids) or not values:
        raise DAMAGED.of(path, f"{_IDS} holds no values with their ids")
    kind = int if isinstance(values[0], int) else str
    if {type(value) for value in values} != {kind} or {type(each) for each in ids} != {int}:
        raise DAMAGED.of(path, f"{_IDS} holds values or ids of the wrong type")
    try:
        np.array(ids, np.int64)
        return pa.array(values, pa.int64() if kind is int else pa.string()), ids
    except (pa.ArrowException, OverflowError):
        raise DAMAGED.of(path, f"{_IDS} holds a number of more than 64 bits") from None

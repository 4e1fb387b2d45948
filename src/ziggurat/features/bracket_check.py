"""Detects lists in brackets that the config does not declare: split at the delimiter, ``[240, 132]`` gives ``[240``."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import DataError, shorten
from ziggurat.data.readers.arrow_compute import pc
from ziggurat.features.config import BagFeature, InputFeature, SequenceFeature


def check_brackets(table: pa.Table, features: Sequence[InputFeature]) -> None:
    """Rejects a bag or sequence of texts in which every cell is a list in brackets, unless ``brackets`` is set.

    Args:
        table: raw columns from a reader.
        features: the features to check.

    Raises:
        DataError: a feature's cells are all in brackets; the message names the feature and the key to set.
    """
    for feature in features:
        if isinstance(feature, BagFeature | SequenceFeature) and feature.type == "text" and not feature.brackets:
            lists = table.column(feature.source_column).combine_chunks()
            if _all_in_brackets(lists):
                cell = feature.delimiter.join(next(filter(None, lists.to_pylist())))
                raise DataError(
                    f"feature {feature.name!r}: every cell of column {feature.source_column!r} is a list in brackets, "
                    f"such as {shorten(cell)}, and the brackets would become part of the ids",
                    'set `brackets: true` and what separates the ids, as in `delimiter: ","`, on the feature',
                )


def _all_in_brackets(lists: pa.Array) -> bool:
    """Returns whether exactly the first element of each list opens a bracket and exactly the last one closes it."""
    lengths = pc.list_value_length(lists).fill_null(0).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    is_filled = lengths > 0
    elements = lists.flatten()
    opens = _mask(pc.starts_with(elements, "["))
    closes = _mask(pc.ends_with(elements, "]"))
    filled = int(is_filled.sum())
    if not filled or int(opens.sum()) != filled or int(closes.sum()) != filled:
        return False
    return bool(opens[(ends - lengths)[is_filled]].all() and closes[ends[is_filled] - 1].all())


def _mask(values: pa.Array) -> npt.NDArray[np.bool_]:
    return values.to_numpy(zero_copy_only=False).astype(np.bool_)

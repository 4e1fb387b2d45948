"""Assembles encoded columns from codes and numbers, given fitted encoders.

Preparation and prediction share this code; they differ only in how often a distinct value is looked up.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.schema import TIME_COLUMN, Schema
from ziggurat.features.columns import Codes
from ziggurat.features.config import (
    BagFeature,
    CategoricalFeature,
    FeatureConfig,
    IdFeature,
    InputFeature,
    NumericFeature,
    SequenceFeature,
    Targets,
)
from ziggurat.features.encoders.encoder import MISSING_ROW, Ids
from ziggurat.features.inputs.of_features import inputs_of
from ziggurat.features.tables import resolve_tables
from ziggurat.objectives.label_figures import LabelFigures

IdArray = npt.NDArray[np.int32 | np.int64]


def encoded_schema(
    configured: Sequence[FeatureConfig | InputFeature],
    targets: Targets,
    table_rows: Mapping[str, int],
    labels: Mapping[str, LabelFigures] = MappingProxyType({}),
) -> Schema:
    """Returns the schema of a dataset.

    Args:
        configured: the features of the config, or the inputs that they become.
        targets: labels, weight, group and time.
        table_rows: number of rows of each table, including the tables of bucketised numbers.
        labels: figures of the labels, with the levels that were found.
    """
    features = inputs_of(configured)
    several = with_several_codes(features)
    dense = tuple(f.name for f in features if isinstance(f, NumericFeature) and not f.bucketised)
    tables = {
        f.name: f.name if isinstance(f, NumericFeature) else f.table_name for f in features if f.name not in dense
    }
    return Schema(
        dense=dense,
        categorical=tuple(
            f.name
            for f in features
            if (isinstance(f, CategoricalFeature) and f.name not in several) or (f.kind == "numeric" and f.bucketised)
        ),
        bags=tuple(f.name for f in features if isinstance(f, BagFeature) or f.name in several),
        sequences=tuple(f.name for f in features if isinstance(f, SequenceFeature)),
        tables=tables,
        rows={table: table_rows[table] for table in dict.fromkeys(tables.values())},
        labels=tuple(label.name for label in targets.labels),
        has_weight=targets.weight is not None,
        has_group=targets.group is not None,
        has_time=targets.time is not None,
        kinds={label.name: label.kind for label in targets.labels if label.kind != "binary"},
        levels={
            label.name: labels[label.name].levels
            for label in targets.labels
            if label.kind == "ordinal" and label.name in labels
        },
        counted=tuple(label.name for label in targets.labels if label.trials is not None),
    )


def with_several_codes(features: Sequence[InputFeature]) -> frozenset[str]:
    """Returns the categorical features whose values look up several rows: a dataset has bags of them."""
    tables = resolve_tables(features) if features else {}
    return frozenset(
        feature.name
        for feature in features
        if isinstance(feature, CategoricalFeature) and tables[feature.table_name].encoder.codes > 1
    )


def ids_by_code(ids: Ids, table_rows: int) -> IdArray:
    """Returns ids indexed by code, in the dataset's dtype: those of each distinct value, then that of a missing value.

    They are (n + 1,), or (n + 1, codes) if a value can have several; -1 is none.
    """
    missing = np.full((1, *ids.shape[1:]), -1, np.int64)
    missing.reshape(-1)[0] = MISSING_ROW
    return np.concatenate([ids, missing]).astype(np.int64 if table_rows >= 2**31 else np.int32)


def truncate(feature: IdFeature, codes: Codes) -> Codes:
    """Returns the codes that the feature looks up in each row: the first of a bag, the last of a sequence."""
    if isinstance(feature, SequenceFeature):
        return codes.last(feature.last)
    if isinstance(feature, BagFeature) and feature.max_length is not None:
        return codes.first(feature.max_length)
    return codes


def id_column(feature: IdFeature, codes: Codes, ids: IdArray) -> pa.Array:
    """Returns the encoded column of a feature; ``ids`` is a result of :func:`ids_by_code`."""
    kept = truncate(feature, codes)
    found = np.take(ids, kept.codes, axis=0)
    if found.ndim == 2:
        present = found >= 0
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(present.sum(axis=1))])
        offsets = ends if kept.offsets is None else ends[kept.offsets]
        return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(found[present]))
    values = pa.array(found)
    if kept.offsets is None:
        return values
    return pa.ListArray.from_arrays(pa.array(kept.offsets.astype(np.int32)), values)


def numeric_column(values: npt.NDArray[np.float32] | npt.NDArray[np.int64]) -> pa.Array:
    """Returns the encoded column of a numeric chain's output: float32, or int32 ids if it was bucketised."""
    return pa.array(values if values.dtype == np.float32 else values.astype(np.int32))


def target_columns(targets: Mapping[str, npt.NDArray[np.generic]]) -> Iterable[tuple[str, pa.Array]]:
    """Yields the encoded columns of labels, weight, group and time (floored to int64)."""
    for name, values in targets.items():
        yield name, pa.array(np.floor(values).astype(np.int64) if name == TIME_COLUMN else values)

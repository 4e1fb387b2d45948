"""The fitted transform: encodes raw blocks in the same way for training, evaluation and prediction.

It is saved as a folder (:mod:`ziggurat.features.saved_transform`)::

    transform.json              version, features, targets, fitted numeric chains, figures of encoded features,
                                checksums of the other files
    table.<name>.json           the table's fitted encoder
    table.<name>.safetensors    the encoder's arrays, if it has any
    encoded.<name>.safetensors  the arrays of an encoded feature
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.schema import RawSchema, Schema
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.features.assemble import encoded_schema, id_column, ids_by_code, numeric_column, target_columns
from ziggurat.features.checks import check_rows
from ziggurat.features.columns import Codes, encode_column, numbers
from ziggurat.features.config import FeatureConfig, NumericFeature, Targets
from ziggurat.features.encoders.category_files import save_category
from ziggurat.features.encoders.category_numbers import CategoryMap
from ziggurat.features.encoders.checks import checked_rows, encode_values, encoder_label
from ziggurat.features.encoders.encoder import Encoder
from ziggurat.features.encoders.files import save_encoder
from ziggurat.features.inputs.categories import category_columns
from ziggurat.features.inputs.of_features import inputs_of, with_derived_columns
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.preparation_plan import dataset_settings
from ziggurat.features.raw_schema import columns_for
from ziggurat.features.saved_transform import SavedTransform, save_transform
from ziggurat.features.tables import resolve_tables
from ziggurat.objectives.label_figures import LabelFigures


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """An encoded block.

    Attributes:
        batch: the encoded columns, with the dataset's names and types; without targets if the block is unlabelled.
        kept_rows: int64: position in the raw block of each row of ``batch``.
        bad: rows that the reader or the transform rejected, ordered by line.
    """

    batch: pa.RecordBatch
    kept_rows: npt.NDArray[np.int64]
    bad: list[BadRow]


class Transform:
    """Fitted features: a numeric chain per numeric feature, an encoder per table, a map per encoded feature.

    Attributes:
        schema: schema of the encoded columns.
        features: the features of the config.
        inputs: the inputs of the model, which time features become several of.
        labels: figures of the labels' training rows; empty if an earlier ziggurat fitted it.
        categories: the fitted map of each encoded feature.
    """

    def __init__(
        self,
        features: Sequence[FeatureConfig],
        targets: Targets,
        chains: Mapping[str, NumericChain],
        encoders: Mapping[str, Encoder],
        labels: Mapping[str, LabelFigures] = MappingProxyType({}),
        categories: Mapping[str, CategoryMap] = MappingProxyType({}),
    ) -> None:
        self.features = tuple(features)
        self.inputs = inputs_of(features)
        self.targets = targets
        self.chains = dict(chains)
        self.encoders = dict(encoders)
        self.labels = dict(labels)
        self.categories = dict(categories)
        self._tables = resolve_tables(features)
        self._labels = {table: encoder_label(table, encoding.encoder) for table, encoding in self._tables.items()}
        self._rows = {table: checked_rows(encoder, self._labels[table]) for table, encoder in encoders.items()}
        self.schema: Schema = encoded_schema(features, targets, {**self._rows, **bucketised_rows(chains)}, labels)

    def raw_schema(self, labelled: bool = True) -> RawSchema:
        """Returns the raw columns that :meth:`apply` needs."""
        return columns_for(self.features, self.targets if labelled else None)

    def apply(
        self, block: RawBlock, labelled: bool = True, places_B: npt.NDArray[np.int64] | None = None
    ) -> EncodedBlock:
        """Encodes the good rows of a block, in their order.

        Args:
            block: a block that was read with :meth:`raw_schema`.
            labelled: if False, labels, weight, group and time are ignored, and their columns may be absent.
            places_B: for rows of the log that the transform was fitted on: for each good row, its place among all good
                rows if it is a training row, otherwise -1. A target encoding gives training rows the figures of other
                ones. None: all rows are as those of validation. Of another length than there are good rows, it is
                ignored; the log has then changed, for the caller to refuse.

        Raises:
            FeatureError: an encoder gives an id outside its table, or none.
            PartFailed: an encoder from outside the package raised an exception of its own.
        """
        checked = check_rows(block, self.targets if labelled else None, self._tables)
        raw_columns = with_derived_columns(checked.table, self.inputs)
        places_B = places_B if places_B is not None and len(places_B) == len(checked.rows) else None
        of_categories = category_columns(raw_columns, self.inputs, self.categories, places_B)
        encoded: dict[str, tuple[pa.Array, Codes]] = {}
        columns: dict[str, pa.Array] = {}
        for feature in self.inputs:
            if isinstance(feature, NumericFeature):
                values_B = of_categories.get(feature.source_column)
                values_B = numbers(raw_columns.column(feature.source_column)) if values_B is None else values_B
                columns[feature.name] = numeric_column(self.chains[feature.name].apply(values_B))
                continue
            raw = raw_columns.column(feature.source_column)
            if feature.source_column not in encoded:
                encoded[feature.source_column] = encode_column(raw)
            values, codes = encoded[feature.source_column]
            table = feature.table_name
            config, rows, where = self._tables[table].encoder, self._rows[table], self._labels[table]
            ids = encode_values(self.encoders[table], values, rows, config, where)
            columns[feature.name] = id_column(feature, codes, ids_by_code(ids, rows))
        columns.update(target_columns(checked.targets))
        return EncodedBlock(pa.RecordBatch.from_pydict(columns), checked.rows, checked.bad)

    def restricted(self, features: Collection[str]) -> Self:
        """Returns a transform that encodes some features alone, and needs their columns alone.

        Args:
            features: names of features of the config, at least one.
        """
        found = copy.copy(self)
        found.features = tuple(feature for feature in self.features if feature.name in features)
        found.inputs = inputs_of(found.features)
        names = {each.name for each in found.inputs}
        kept = {
            name: replace(table, features=tuple(each for each in table.features if each.name in names))
            for name, table in self._tables.items()
        }
        found._tables = {name: table for name, table in kept.items() if table.features}
        return found

    def save(self, folder: Path) -> str:
        """Writes the transform into ``folder``, ``transform.json`` last; returns the checksum of all files."""
        for table, encoder in self.encoders.items():
            save_encoder(folder, table, encoder, self._tables[table].encoder)
        figures = {name: save_category(folder, name, fitted) for name, fitted in self.categories.items()}
        return save_transform(folder, self.features, self.targets, self.chains, self.labels, figures)

    @classmethod
    def load(cls, folder: Path, checksum: str | None = None) -> Self:
        """Loads a transform that :meth:`save` or preparation wrote.

        Args:
            folder: the folder of the transform.
            checksum: the checksum that it must have, if that was recorded.

        Raises:
            DataError: the folder contains no transform, a damaged one, another than the recorded one, or one of another
                version.
        """
        saved = SavedTransform.open(folder, checksum)
        encoders = {table: saved.encoder(table) for table in saved.tables()}
        return cls(saved.features, saved.targets, saved.chains, encoders, saved.labels, saved.category_maps())


def first_difference(folder: Path, features: Sequence[FeatureConfig], targets: Targets) -> str | None:
    """Compares a config with that of a saved transform; returns the first differing key, such as ``features.user``.

    Raises:
        DataError: see :meth:`Transform.load`.
    """
    saved = SavedTransform.open(folder)
    saved_features, given_features = (
        [dataset_settings(each) for each in configs] for configs in (saved.features, features)
    )
    for old, new in zip_longest(saved_features, given_features, fillvalue=None):
        if old != new:
            return f"features.{(new or old or {})['name']}"
    return None if saved.targets.as_prepared == targets.as_prepared else "data.labels, weight, group or time"


def bucketised_rows(chains: Mapping[str, NumericChain]) -> dict[str, int]:
    """Returns the number of table rows of each chain that ends in ``bucketise``."""
    return {name: chain.table_rows for name, chain in chains.items() if chain.table_rows is not None}

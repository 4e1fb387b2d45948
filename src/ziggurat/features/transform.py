"""The fitted transform: raw blocks to encoded record batches, alike in training, evaluation and prediction.

Saved as a folder::

    transform.json            version, features, targets, fitted numeric chains, tables
    table.<name>.json         the table's fitted encoder
    table.<name>.safetensors  its arrays, where it has any
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.config import Config
from ziggurat.core.files import write_json
from ziggurat.core.schema import RawSchema, Schema
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.features.assemble import encoded_schema, id_column, ids_by_code, numeric_column, target_columns
from ziggurat.features.checks import check_rows
from ziggurat.features.columns import Codes, encode_column, numbers
from ziggurat.features.config import FeatureConfig, NumericFeature, Targets
from ziggurat.features.encoders.encoder import Encoder
from ziggurat.features.encoders.files import load_encoder, read_json, save_encoder
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.preparation_plan import what_is_encoded
from ziggurat.features.raw_schema import columns_for
from ziggurat.features.tables import resolve_tables
from ziggurat.features.versions import check_version

TRANSFORM_VERSION = 1


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """What a transform makes of a block.

    Attributes:
        batch: the encoded columns, in the dataset's names and types; without targets when unlabelled.
        kept_rows: int64, position in the raw block of each row of ``batch``.
        bad: every refused row, by the reader or the transform, by line.
    """

    batch: pa.RecordBatch
    kept_rows: npt.NDArray[np.int64]
    bad: list[BadRow]


class _Saved(Config):
    """The configs that a saved transform carries."""

    features: tuple[FeatureConfig, ...]
    targets: Targets


class Transform:
    """Fitted features: numeric chains by feature, encoders by table.

    Attributes:
        schema: of the encoded columns.
    """

    def __init__(
        self,
        features: Sequence[FeatureConfig],
        targets: Targets,
        chains: Mapping[str, NumericChain],
        encoders: Mapping[str, Encoder],
    ) -> None:
        self.features = tuple(features)
        self.targets = targets
        self.chains = dict(chains)
        self.encoders = dict(encoders)
        self._tables = resolve_tables(features)
        rows = {table: encoder.rows for table, encoder in encoders.items()}
        self.schema: Schema = encoded_schema(features, targets, {**rows, **bucketised_rows(chains)})

    def raw_schema(self, labelled: bool = True) -> RawSchema:
        """The raw columns that :meth:`apply` needs."""
        return columns_for(self.features, self.targets if labelled else None)

    def apply(self, block: RawBlock, labelled: bool = True) -> EncodedBlock:
        """Encode the good rows of a block read with :meth:`raw_schema`; order is kept.

        Args:
            labelled: False ignores labels, weight, group and time, whose columns may then be absent.
        """
        checked = check_rows(block, self.targets if labelled else None, self._tables)
        encoded: dict[str, tuple[pa.Array, Codes]] = {}
        columns: dict[str, pa.Array] = {}
        for feature in self.features:
            raw = checked.table.column(feature.source_column)
            if isinstance(feature, NumericFeature):
                columns[feature.name] = numeric_column(self.chains[feature.name].apply(numbers(raw)))
                continue
            if feature.source_column not in encoded:
                encoded[feature.source_column] = encode_column(raw)
            values, codes = encoded[feature.source_column]
            encoder = self.encoders[feature.table_name]
            columns[feature.name] = id_column(feature, codes, ids_by_code(encoder.transform(values), encoder.rows))
        columns.update(target_columns(checked.targets))
        return EncodedBlock(pa.RecordBatch.from_pydict(columns), checked.rows, checked.bad)

    def save(self, folder: Path) -> None:
        """Write the transform into ``folder``; ``transform.json`` comes last."""
        for table, encoder in self.encoders.items():
            save_encoder(folder, table, encoder)
        save_transform(folder, self.features, self.targets, self.chains)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The transform that :meth:`save` or preparation wrote.

        Raises:
            DataError: the folder holds no transform, or one of another version.
        """
        values, saved = _read(folder)
        chains = {name: NumericChain.from_json(chain) for name, chain in values["chains"].items()}
        encoders = {table: load_encoder(folder, table) for table in resolve_tables(saved.features)}
        return cls(saved.features, saved.targets, chains, encoders)


def encoded_otherwise(folder: Path, features: Sequence[FeatureConfig], targets: Targets) -> str | None:
    """The first key of a config that differs from what a saved transform was fitted by, such as ``features.user``.

    Raises:
        DataError: as :meth:`Transform.load`.
    """
    _, saved = _read(folder)
    theirs, ours = ([what_is_encoded(each) for each in some] for some in (saved.features, features))
    for old, new in zip_longest(theirs, ours, fillvalue=None):
        if old != new:
            return f"features.{(new or old or {})['name']}"
    return None if saved.targets == targets else "data.labels, weight, group or time"


def _read(folder: Path) -> tuple[dict[str, Any], _Saved]:
    """The content of ``transform.json``, and the configs in it."""
    values = read_json(folder / "transform.json")
    check_version(str(folder / "transform.json"), values["version"], TRANSFORM_VERSION)
    return values, _Saved.model_validate({"features": values["features"], "targets": values["targets"]})


def save_transform(
    folder: Path, features: Sequence[FeatureConfig], targets: Targets, chains: Mapping[str, NumericChain]
) -> None:
    """Write ``transform.json`` beside encoders that are saved already."""
    saved: dict[str, Any] = _Saved(features=tuple(features), targets=targets).model_dump(mode="json")
    chains_json = {name: chain.to_json() for name, chain in chains.items()}
    write_json(folder / "transform.json", {"version": TRANSFORM_VERSION, **saved, "chains": chains_json})


def bucketised_rows(chains: Mapping[str, NumericChain]) -> dict[str, int]:
    """Table rows of the chains that end in ``bucketise``."""
    return {name: chain.table_rows for name, chain in chains.items() if chain.table_rows is not None}

"""Pass 3 of preparation: staged parts to the encoded dataset, by taking every code's id.

The columns of the next part are encoded on a pool of threads while those of the one before are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.progress import Progress
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, WEIGHT_COLUMN, label_column
from ziggurat.data.encoded.dataset import SPLITS, DatasetWriter, Split
from ziggurat.data.encoded.split import Assignment
from ziggurat.features.assemble import id_column, numeric_column, target_columns
from ziggurat.features.config import FeatureConfig, NumericFeature, Targets
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.preparation.parts import StagedParts, read_ids
from ziggurat.features.preparation.workers import workers
from ziggurat.features.preparation_plan import Preparation

RowsOfSplit = dict[Split, npt.NDArray[np.int64]]
Columns = dict[str, pa.Array]
Chains = Mapping[str, NumericChain]
"""Feature -> its fitted chain."""
IdFiles = Mapping[tuple[str, str], Path]
"""(raw column, table) -> the ids of the column's values in that table."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Everything that the encoded rows follow from."""

    plan: Preparation
    parts: StagedParts
    assignments: Sequence[Assignment]
    chains: Chains
    id_files: IdFiles

    def encode(self, pool: ThreadPoolExecutor, part: int, rows_of: RowsOfSplit) -> list[Future[dict[Split, Columns]]]:
        """Begin to encode some rows of a part; :func:`joined` waits for them."""
        features = [
            pool.submit(_encode_feature, feature, self.parts, part, rows_of, self.chains, self.id_files)
            for feature in self.plan.features
        ]
        return [*features, pool.submit(_take_targets, self.plan.targets, self.parts, part, rows_of)]


def encode_parts(rows: StagedRows, writer: DatasetWriter, progress: Progress) -> None:
    """Write every staged row to its split, in the order in which it was read."""
    progress.start("encode", sum(rows.parts.rows), "rows")
    done = 0
    for part, batches in enumerate(_batches(rows)):
        for split, batch in batches.items():
            writer.append(split, batch)
        done += rows.parts.rows[part]
        progress.advance(done)
    progress.finish(f"{done:,} rows")


def _batches(rows: StagedRows) -> Iterator[dict[Split, pa.RecordBatch]]:
    """The encoded rows of each part, by split, one part ahead of the caller."""
    with workers(rows.plan.threads, "encode") as pool:
        ahead: list[Future[dict[Split, Columns]]] = []
        for part, assignment in enumerate(rows.assignments):
            of_split: RowsOfSplit = {split: np.flatnonzero(assignment == number) for number, split in enumerate(SPLITS)}
            following = rows.encode(pool, part, {split: some for split, some in of_split.items() if len(some)})
            if ahead:
                yield joined(ahead)
            ahead = following
        if ahead:
            yield joined(ahead)


def joined(futures: list[Future[dict[Split, Columns]]]) -> dict[Split, pa.RecordBatch]:
    """What :meth:`StagedRows.encode` began, as a batch for each split."""
    columns: dict[Split, Columns] = {}
    for future in futures:
        for split, some in future.result().items():
            columns.setdefault(split, {}).update(some)
    return {split: pa.RecordBatch.from_pydict(of_split) for split, of_split in columns.items()}


def _encode_feature(
    feature: FeatureConfig, parts: StagedParts, part: int, rows_of: RowsOfSplit, chains: Chains, id_files: IdFiles
) -> dict[Split, Columns]:
    column = feature.source_column
    if isinstance(feature, NumericFeature):
        values = parts.numbers(part, column)
        chain = chains[feature.name]
        return {split: {feature.name: numeric_column(chain.apply(values[rows]))} for split, rows in rows_of.items()}
    codes = parts.codes(part, column)
    ids = read_ids(id_files[column, feature.table_name], part)
    return {split: {feature.name: id_column(feature, codes.take(rows), ids)} for split, rows in rows_of.items()}


def _take_targets(targets: Targets, parts: StagedParts, part: int, rows_of: RowsOfSplit) -> dict[Split, Columns]:
    names = [label_column(label.name) for label in targets.labels]
    names += [WEIGHT_COLUMN] * (targets.weight is not None)
    names += [GROUP_COLUMN] * (targets.group is not None)
    names += [TIME_COLUMN] * (targets.time is not None)
    staged = {name: parts.target(part, name) for name in names}
    return {
        split: dict(target_columns({name: values[rows] for name, values in staged.items()}))
        for split, rows in rows_of.items()
    }

"""Pass 3 of preparation: encodes the staged parts as the dataset, by replacing every code by its id.

A pool of threads encodes the columns of the next part while those of the previous one are written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.progress import Progress
from ziggurat.core.schema import GROUP_COLUMN, TIME_COLUMN, WEIGHT_COLUMN, count_column, label_column
from ziggurat.data.encoded.dataset import DatasetWriter
from ziggurat.data.encoded.manifest import SPLITS, Split
from ziggurat.data.encoded.split import Assignment
from ziggurat.features.assemble import id_column, numeric_column, target_columns
from ziggurat.features.config import InputFeature, NumericFeature, Targets
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.preparation.parts import IdFile, StagedParts
from ziggurat.features.preparation.workers import workers
from ziggurat.features.preparation_plan import Preparation

RowsOfSplits = dict[Split, npt.NDArray[np.int64]]
"""Selected rows of a part, for each split."""
Columns = dict[str, pa.Array]
Chains = Mapping[str, NumericChain]
"""The fitted chain of each numeric feature."""
IdFiles = Mapping[tuple[str, str], IdFile]
"""For each (raw column, table), the file of the ids that the table assigns to the column's values."""


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Staged rows with all that is needed to encode them.

    Attributes:
        plan: the plan of the preparation.
        parts: the staged parts.
        assignments: the split of each row, for each part.
        chains: the fitted chain of each numeric feature.
        id_files: for each (raw column, table), the file of its ids.
    """

    plan: Preparation
    parts: StagedParts
    assignments: Sequence[Assignment]
    chains: Chains
    id_files: IdFiles

    def encode(self, pool: ThreadPoolExecutor, part: int, rows_of: RowsOfSplits) -> list[Future[dict[Split, Columns]]]:
        """Starts to encode selected rows of a part; :func:`to_batches` waits for the result."""
        features = [
            pool.submit(_encode_feature, feature, self.parts, part, rows_of, self.chains, self.id_files)
            for feature in self.plan.features
        ]
        return [*features, pool.submit(_take_targets, self.plan.targets, self.parts, part, rows_of)]


def encode_parts(rows: StagedRows, writer: DatasetWriter, progress: Progress) -> None:
    """Writes every staged row to its split, in reading order."""
    progress.start("encode", sum(rows.parts.rows), "rows")
    done = 0
    for part, batches in enumerate(_batches(rows)):
        for split, batch in batches.items():
            writer.append(split, batch)
        done += rows.parts.rows[part]
        progress.advance(done)
    progress.finish(f"{done:,} rows")


def _batches(rows: StagedRows) -> Iterator[dict[Split, pa.RecordBatch]]:
    """Yields the encoded rows of each part, by split; the next part is encoded meanwhile."""
    with workers(rows.plan.threads, "encode") as pool:
        running: list[Future[dict[Split, Columns]]] = []
        for part, assignment in enumerate(rows.assignments):
            selected: RowsOfSplits = {}
            for number, split in enumerate(SPLITS):
                split_rows = np.flatnonzero(assignment == number)
                if len(split_rows):
                    selected[split] = split_rows
            following = rows.encode(pool, part, selected)
            if running:
                yield to_batches(running)
            running = following
        if running:
            yield to_batches(running)


def to_batches(futures: list[Future[dict[Split, Columns]]]) -> dict[Split, pa.RecordBatch]:
    """Waits for the columns of :meth:`StagedRows.encode`; returns a batch for each split."""
    columns: dict[Split, Columns] = {}
    for future in futures:
        for split, more in future.result().items():
            columns.setdefault(split, {}).update(more)
    return {split: pa.RecordBatch.from_pydict(split_columns) for split, split_columns in columns.items()}


def _encode_feature(
    feature: InputFeature, parts: StagedParts, part: int, rows_of: RowsOfSplits, chains: Chains, id_files: IdFiles
) -> dict[Split, Columns]:
    column = feature.source_column
    if isinstance(feature, NumericFeature):
        values = parts.numbers(part, column)
        chain = chains[feature.name]
        return {split: {feature.name: numeric_column(chain.apply(values[rows]))} for split, rows in rows_of.items()}
    codes = parts.codes(part, column)
    ids = id_files[column, feature.table_name].read(part)
    return {split: {feature.name: id_column(feature, codes.take(rows), ids)} for split, rows in rows_of.items()}


def staged_targets(targets: Targets) -> list[str]:
    """Returns the names of the staged target columns that the dataset will have."""
    names = [label_column(label.name) for label in targets.labels]
    names += [count_column(label.name) for label in targets.labels if label.trials is not None]
    names += [WEIGHT_COLUMN] * (targets.weight is not None)
    names += [GROUP_COLUMN] * (targets.group is not None)
    names += [TIME_COLUMN] * (targets.time is not None)
    return names


def _take_targets(targets: Targets, parts: StagedParts, part: int, rows_of: RowsOfSplits) -> dict[Split, Columns]:
    staged = {name: parts.target(part, name) for name in staged_targets(targets)}
    return {
        split: dict(target_columns({name: values[rows] for name, values in staged.items()}))
        for split, rows in rows_of.items()
    }

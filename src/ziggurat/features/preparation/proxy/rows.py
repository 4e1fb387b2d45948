"""Reads the staged rows as rows of a proxy's inputs: the values of each table, and buckets of numbers.

Inputs are numbered: the bias, then the values of each table, then the buckets of each numeric column. Rows come in
pools of a fixed number of rows of the split, whatever parts they were staged in, so that training depends on the rows
alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from ziggurat.core.hashing import UInt64Array, hash_array, hash_integers
from ziggurat.core.schema import WEIGHT_COLUMN, count_column, label_column
from ziggurat.data.encoded.split import Assignment
from ziggurat.features.assemble import truncate
from ziggurat.features.preparation.distinct_values import merge_values
from ziggurat.features.preparation.numeric_fitting import measure_numbers
from ziggurat.features.preparation.parts import IdFile, IdWriter, StagedParts
from ziggurat.features.preparation.proxy.factorisation import BIAS, Floats, Ints, Rows
from ziggurat.features.preparation.proxy.learned import values_digest
from ziggurat.features.preparation_plan import Preparation

POOL_ROWS = 1 << 17
_BUCKETS = 16
_PROBABILITIES = np.linspace(0, 1, _BUCKETS + 1)[1:-1]


@dataclass(frozen=True, slots=True)
class TableInputs:
    """The inputs of a table's values.

    Attributes:
        start, stop: their numbers.
        digest: a digest of the values, in their order.
        ids: raw column -> the number of each value, counted from ``start``, part by part.
    """

    start: int
    stop: int
    digest: str
    ids: dict[str, IdFile]


@dataclass(frozen=True, slots=True)
class ProxyRows:
    """The staged rows with the numbers of their inputs.

    Attributes:
        plan, parts, assignments: the staged rows.
        tables: the inputs of each table.
        edges: raw numeric column -> the number of its first input, and the edges of its buckets.
        keys_V: a key of each input, from which its initial vector follows.
        label: the label that is learned, with what it is shifted and divided by.
        mean_weight: the mean weight of the training rows, by which weights are divided, so that their unit is no
            matter.
    """

    plan: Preparation
    parts: StagedParts
    assignments: Sequence[Assignment]
    tables: dict[str, TableInputs]
    edges: dict[str, tuple[int, npt.NDArray[np.float64]]]
    keys_V: UInt64Array
    label: tuple[str, float, float]
    mean_weight: float

    @classmethod
    def number(
        cls, plan: Preparation, parts: StagedParts, assignments: Sequence[Assignment], folder: Path, split: int
    ) -> Self:
        """Numbers all inputs.

        Args:
            plan, parts, assignments: the staged rows.
            folder: where to keep the numbers of values, part by part.
            split: the number of the split that is trained on.
        """
        tables: dict[str, TableInputs] = {}
        keys: list[UInt64Array] = [np.zeros(1, np.uint64)]
        end = 1
        for number, (name, encoding) in enumerate(plan.tables.items()):
            columns = list(dict.fromkeys(feature.source_column for feature in encoding.features))
            read = [(column, part) for column in columns for part in range(len(parts))]
            merged, codes = merge_values([parts.values(part, column) for column, part in read], encoding.type)
            writers = {
                column: IdWriter(folder / f"proxy.{number:05d}.{place:05d}.arrow")
                for place, column in enumerate(columns)
            }
            for (column, _), places in zip(read, codes, strict=True):
                writers[column].append(places)
            hashes = hash_array(merged)
            ids = {column: writer.close() for column, writer in writers.items()}
            tables[name] = TableInputs(end, end + len(merged), values_digest(hashes), ids)
            keys.append(hash_integers(hashes.view(np.int64), number))
            end += len(merged)
        edges: dict[str, tuple[int, npt.NDArray[np.float64]]] = {}
        for column, measured in measure_numbers(plan.staged_numbers, parts, assignments).items():
            present = measured.sample[~np.isnan(measured.sample)]
            edges[column] = end, np.unique(np.quantile(present, _PROBABILITIES)) if len(present) else np.empty(0)
            end += _BUCKETS + 1
        buckets = end - sum(len(each) for each in keys)
        keys.append(hash_integers(np.arange(buckets), len(tables)))
        label = _label(plan, parts, assignments, split)
        mean = _mean_weight(plan, parts, assignments, split)
        return cls(plan, parts, assignments, tables, edges, np.concatenate(keys), label, mean)

    @property
    def logistic(self) -> bool:
        """Whether the label is a probability."""
        return self.plan.targets.labels[0].kind in {"binary", "soft"}

    def count(self, split: int) -> int:
        """Returns the number of rows of a split."""
        return sum(int(np.count_nonzero(each == split)) for each in self.assignments)

    def lookups(self, split: int) -> npt.NDArray[np.float64]:
        """Returns how often each input occurs in the rows of a split, (V,)."""
        counts_V = np.zeros(len(self.keys_V))
        for pool in self.pools(split):
            counts_V += np.bincount(pool.inputs_L, minlength=len(counts_V))
        return counts_V

    def pools(self, split: int, random: np.random.Generator | None = None) -> Iterator[Rows]:
        """Yields the rows of a split in pools, in reading order; with ``random`` those of a pool are shuffled."""
        waiting: list[Rows] = []
        size = 0
        for part, assignment in enumerate(self.assignments):
            rows = self._read(part, np.flatnonzero(assignment == split))
            while len(rows):
                fitting = min(len(rows), POOL_ROWS - size)
                waiting.append(rows.slice(0, fitting))
                size += fitting
                rows = rows.slice(fitting, len(rows)) if fitting < len(rows) else _join([])
                if size == POOL_ROWS:
                    yield _shuffled(_join(waiting), random)
                    waiting, size = [], 0
        if size:
            yield _shuffled(_join(waiting), random)

    def _read(self, part: int, rows: Ints) -> Rows:
        """Returns some rows of a part."""
        inputs, row_of = [np.full(len(rows), BIAS, np.int64)], [np.arange(len(rows))]
        weights = [np.ones(len(rows), np.float32)]
        for feature in self.plan.id_features:
            table = self.tables[feature.table_name]
            ids = table.ids[feature.source_column].read(part)
            codes = truncate(feature, self.parts.codes(part, feature.source_column)).take(rows)
            owners = np.arange(len(rows)) if codes.offsets is None else np.repeat(np.arange(len(rows)), codes.lengths)
            shares = np.ones(len(rows)) if codes.offsets is None else 1 / np.maximum(codes.lengths, 1)
            present = np.flatnonzero(codes.codes < len(ids))
            inputs.append(table.start + ids[codes.codes[present]].astype(np.int64))
            row_of.append(owners[present])
            weights.append(shares[owners[present]].astype(np.float32))
        for column, (first, edges) in self.edges.items():
            values = self.parts.numbers(part, column)[rows]
            bucket = np.where(np.isnan(values), _BUCKETS, np.searchsorted(edges, values, side="right"))
            inputs.append(first + bucket)
            row_of.append(np.arange(len(rows)))
            weights.append(np.ones(len(rows), np.float32))
        owners = np.concatenate(row_of)
        order = np.argsort(owners, kind="stable")
        starts = np.searchsorted(owners[order], np.arange(len(rows)))
        name, shift, scale = self.label
        labels = (self.parts.target(part, label_column(name))[rows].astype(np.float64) - shift) / scale
        weights_B = _weights(self.plan, self.parts, part)[rows] / self.mean_weight
        return Rows(
            np.concatenate(inputs)[order],
            np.concatenate(weights)[order],
            starts.astype(np.int64),
            labels.astype(np.float32),
            weights_B.astype(np.float32),
        )


def _label(
    plan: Preparation, parts: StagedParts, assignments: Sequence[Assignment], split: int
) -> tuple[str, float, float]:
    """Returns the first label with its shift and scale: 0 and 1 for a probability, else mean and deviation."""
    label = plan.targets.labels[0]
    if label.kind in {"binary", "soft"}:
        return label.name, 0.0, 1.0
    count = total = squares = 0.0
    for part, assignment in enumerate(assignments):
        values = parts.target(part, label_column(label.name))[assignment == split].astype(np.float64)
        count, total, squares = count + len(values), total + values.sum(), squares + (values**2).sum()
    mean = total / max(count, 1)
    return label.name, mean, max(squares / max(count, 1) - mean**2, 0) ** 0.5 or 1.0


def _weights(plan: Preparation, parts: StagedParts, part: int) -> npt.NDArray[np.float64]:
    """Returns the weight of each row of a part for the first label: its own, times the label's trials."""
    weights_B = np.ones(parts.rows[part])
    if plan.targets.weight is not None:
        weights_B *= parts.target(part, WEIGHT_COLUMN)
    label = plan.targets.labels[0]
    if label.trials is not None:
        weights_B *= parts.target(part, count_column(label.name))
    return weights_B


def _mean_weight(plan: Preparation, parts: StagedParts, assignments: Sequence[Assignment], split: int) -> float:
    """Returns the mean weight of the rows of a split; 1 if all are 0, or there are none."""
    total = sum(
        float(_weights(plan, parts, part)[assignment == split].sum()) for part, assignment in enumerate(assignments)
    )
    return total / max(1, sum(int(np.count_nonzero(each == split)) for each in assignments)) or 1.0


def _join(parts: Sequence[Rows]) -> Rows:
    if not parts:
        empty = np.empty(0, np.float32)
        return Rows(np.empty(0, np.int64), empty, np.empty(0, np.int64), empty, empty)
    sizes = np.cumsum([0, *(len(each.inputs_L) for each in parts[:-1])])
    return Rows(
        np.concatenate([each.inputs_L for each in parts]),
        np.concatenate([each.weights_L for each in parts]),
        np.concatenate([each.starts_B + size for each, size in zip(parts, sizes, strict=True)]),
        np.concatenate([each.labels_B for each in parts]),
        np.concatenate([each.importance_B for each in parts]),
    )


def _shuffled(rows: Rows, random: np.random.Generator | None) -> Rows:
    if random is None:
        return rows
    order = random.permutation(len(rows))
    lengths = np.diff(np.append(rows.starts_B, len(rows.inputs_L)))[order]
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)[:-1]])
    places = np.arange(len(rows.inputs_L)) + np.repeat(rows.starts_B[order] - starts, lengths)
    weights: Floats = rows.weights_L[places]
    return Rows(rows.inputs_L[places], weights, starts, rows.labels_B[order], rows.importance_B[order])

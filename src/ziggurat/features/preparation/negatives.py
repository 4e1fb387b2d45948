"""Adds sampled negatives to staged parts, between the assignment of splits and the fitting of features.

Each positive is followed by its negatives: rows with the same values, but for those of the item and of the columns that
describe it, which are those of the first training positive of the sampled item. All passes after this one see them as
rows of the log.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.core.progress import Progress
from ziggurat.core.schema import label_column
from ziggurat.data.encoded.manifest import SPLITS, Split
from ziggurat.data.encoded.split import TRAIN, Assignment
from ziggurat.features.columns import Codes, encode_column
from ziggurat.features.negatives_config import NegativesConfig, PopularityNegatives
from ziggurat.features.preparation.block_batching import PART_ROWS
from ziggurat.features.preparation.encoding import staged_targets
from ziggurat.features.preparation.negative_sampling import NO_ITEM, Int64Array, NegativeSampler
from ziggurat.features.preparation.parts import (
    ITEM_COLUMN,
    PLACE_COLUMN,
    USER_COLUMN,
    StagedPart,
    StagedParts,
    narrow,
    write_part,
)
from ziggurat.features.preparation_plan import Preparation

FOLDER = "negatives"
_LEAST_ITEMS = 2
_LEAST_RECURRING = 10
"""Items in several rows, all with the same value of a column, that make it look like one that describes them."""


@dataclass(frozen=True, slots=True)
class SampledRows:
    """Staged rows with sampled negatives among them.

    Attributes:
        parts: the new parts.
        assignments: the split of each row, for each part.
        counts: number of negatives in each split.
        missing: number of negatives that do not exist, as their users have positives among all other items.
    """

    parts: StagedParts
    assignments: list[Assignment]
    counts: dict[Split, int]
    missing: int


def add_negatives(
    plan: Preparation, parts: StagedParts, assignments: Sequence[Assignment], staging: Path, progress: Progress
) -> SampledRows:
    """Writes new parts below ``staging``, with negatives after each positive of ``plan.data.negatives``.

    Raises:
        DataError: the positives of the training split have fewer than two items.
    """
    config, label = plan.data.negatives, plan.data.negative_label
    assert config is not None
    folder = staging / FOLDER
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    positive = [parts.target(part, label_column(label)) == 1 for part in range(len(parts))]
    catalogue = _Catalogue.read(plan, config, parts, assignments, positive)
    for column in _undeclared_item_columns(plan, config, parts):
        progress.note(
            f"column {column!r} has one value for each {config.item}, as if it described it: if it does, list it in "
            "data.negatives.item_columns, or every negative keeps that of its positive, and is told apart by it"
        )
    progress.start("sample", sum(parts.rows), "rows")
    recorded: list[tuple[int, str]] = []
    found: list[Assignment] = []
    counts, missing, done = np.zeros(len(SPLITS), np.int64), 0, 0
    for part, (assignment, positive_B) in enumerate(zip(assignments, positive, strict=True)):
        users_B, first = parts.target(part, USER_COLUMN), int(parts.starts[part])
        columns = _PartColumns.read(plan, parts, part)
        for rows in _slices(assignment, positive_B, config):
            plan_of_rows = _interleave(catalogue, config, assignment, positive_B, users_B, first, rows)
            content = columns.with_negatives(plan_of_rows, catalogue, first)
            recorded.append((len(plan_of_rows.rows), write_part(folder, len(recorded), content)))
            found.append(assignment[plan_of_rows.rows])
            sampled = plan_of_rows.items != NO_ITEM
            counts += np.bincount(found[-1][sampled], minlength=len(SPLITS))
            missing += plan_of_rows.missing
        done += parts.rows[part]
        progress.advance(done)
    by_split = dict(zip(SPLITS, counts.tolist(), strict=True))
    listed = ", ".join(f"{split} {count:,}" for split, count in by_split.items())
    progress.finish(f"{counts.sum():,} negatives")
    short = f"; {missing:,} more do not exist, as their users have positives among all other items" if missing else ""
    progress.note(f"negatives sampled {config.distribution} from {len(catalogue.keys):,} items: {listed}{short}")
    return SampledRows(StagedParts(folder, recorded), found, by_split, missing)


@dataclass(frozen=True, slots=True)
class _Interleaved:
    """The rows of a new part.

    Attributes:
        rows: int64 (N,): the row of the old part that each row is made from.
        items: int64 (N,): the position of a negative's item in the catalogue; :data:`NO_ITEM` for a row of the log.
        missing: number of negatives that do not exist.
    """

    rows: Int64Array
    items: Int64Array
    missing: int


def _slices(
    assignment: Assignment, positive_B: npt.NDArray[np.bool_], config: NegativesConfig
) -> Iterator[npt.NDArray[np.int64]]:
    """Yields consecutive rows that become about :data:`PART_ROWS` rows with their negatives."""
    counts = np.array([config.count(split) for split in SPLITS], np.int64)
    ends = np.cumsum(1 + counts[assignment] * positive_B)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + PART_ROWS, side="right")))
        yield np.arange(start, stop)
        start = stop


def _interleave(
    catalogue: _Catalogue,
    config: NegativesConfig,
    assignment: Assignment,
    positive_B: npt.NDArray[np.bool_],
    users_B: Int64Array,
    first: int,
    rows: Int64Array,
) -> _Interleaved:
    """Draws the negatives of some rows of a part, whose first row is number ``first`` of all rows."""
    sources, items = [rows], [np.full(len(rows), NO_ITEM, np.int64)]
    missing = 0
    for number, split in enumerate(SPLITS):
        chosen, count = rows[(assignment[rows] == number) & positive_B[rows]], config.count(split)
        drawn_RK = catalogue.sampler.draw(users_B[chosen], first + chosen, count)
        exist = drawn_RK != NO_ITEM
        sources.append(np.repeat(chosen, exist.sum(axis=1)))
        items.append(drawn_RK[exist])
        missing += int((~exist).sum())
    all_rows = np.concatenate(sources)
    order = np.argsort(all_rows, kind="stable")  # a row of the log, then its negatives
    return _Interleaved(all_rows[order], np.concatenate(items)[order], missing)


@dataclass(frozen=True, slots=True)
class _Catalogue:
    """The items that may be drawn, with the values of the columns that describe them.

    Attributes:
        keys: int64 (I,), ascending.
        numbers: raw numeric column -> its value for each item, NaN for missing.
        ids: raw id column -> its value, or list of values, for each item.
        sampler: draws positions in ``keys``.
    """

    keys: Int64Array
    numbers: dict[str, npt.NDArray[np.float64]]
    ids: dict[str, pa.Array]
    sampler: NegativeSampler

    @classmethod
    def read(
        cls,
        plan: Preparation,
        config: NegativesConfig,
        parts: StagedParts,
        assignments: Sequence[Assignment],
        positive: Sequence[npt.NDArray[np.bool_]],
    ) -> _Catalogue:
        users = [parts.target(part, USER_COLUMN)[chosen] for part, chosen in enumerate(positive)]
        items = [parts.target(part, ITEM_COLUMN)[chosen] for part, chosen in enumerate(positive)]
        training = [
            np.flatnonzero(chosen & (assignment == TRAIN))
            for chosen, assignment in zip(positive, assignments, strict=True)
        ]
        training_items = np.concatenate([parts.target(part, ITEM_COLUMN)[rows] for part, rows in enumerate(training)])
        keys, firsts, counts = np.unique(training_items, return_index=True, return_counts=True)
        if len(keys) < _LEAST_ITEMS:
            raise DataError(
                f"data.negatives: the positives of the training split have {len(keys)} item{'s' * (len(keys) != 1)} in "
                f"column {config.item!r}; at least {_LEAST_ITEMS} are needed to draw another one",
                "name the column of the items as data.negatives.item, and check the label and the split",
            )
        weights = counts.astype(np.float64) ** config.power if isinstance(config, PopularityNegatives) else None
        sampler = NegativeSampler(np.concatenate(users), np.concatenate(items), keys, weights, config.seed)
        part_of = np.repeat(np.arange(len(training)), [len(rows) for rows in training])[firsts]
        rows = np.concatenate(training)[firsts]
        described = {config.item, *config.item_columns}
        described |= {each.source_column for each in plan.features if described.issuperset(each.log_columns)}
        order = np.argsort(part_of, kind="stable")
        places = np.argsort(order, kind="stable")
        columns = [_PartColumns.read(plan, parts, part, described, rows[part_of == part]) for part in range(len(parts))]
        return cls(
            keys=keys,
            numbers={
                name: np.concatenate([each.numbers[name] for each in columns])[places]
                for name in plan.staged_numbers
                if name in described
            },
            ids={
                name: pa.concat_arrays([each.ids[name] for each in columns]).take(pa.array(places))
                for name in plan.id_columns
                if name in described
            },
            sampler=sampler,
        )


@dataclass(frozen=True, slots=True)
class _PartColumns:
    """The raw columns of a part, decoded: numbers, id columns as values or lists, and targets."""

    numbers: dict[str, npt.NDArray[np.float64]]
    ids: dict[str, pa.Array]
    targets: dict[str, npt.NDArray[Any]]

    @classmethod
    def read(
        cls,
        plan: Preparation,
        parts: StagedParts,
        part: int,
        only: set[str] | None = None,
        rows: Int64Array | None = None,
    ) -> _PartColumns:
        """Reads a part.

        Args:
            plan: the plan of the preparation.
            parts: the staged parts.
            part: number of the part.
            only: the columns to read, without targets; default: all of them, with targets.
            rows: the rows to read; default: all.
        """
        taken = slice(None) if rows is None else rows
        wanted = lambda name: only is None or name in only  # noqa: E731
        return cls(
            {name: parts.numbers(part, name)[taken] for name in plan.staged_numbers if wanted(name)},
            {
                name: _decoded(parts.values(part, name), parts.codes(part, name), rows)
                for name in plan.id_columns
                if wanted(name)
            },
            {} if only is not None else {name: parts.target(part, name) for name in staged_targets(plan.targets)},
        )

    def with_negatives(self, new: _Interleaved, catalogue: _Catalogue, first: int) -> StagedPart:
        """Returns the part that holds these rows and negatives; its first row is number ``first`` of the log."""
        sampled = new.items != NO_ITEM
        numbers = {name: values[new.rows] for name, values in self.numbers.items()}
        for name, values in catalogue.numbers.items():
            numbers[name][sampled] = values[new.items[sampled]]
        ids: dict[str, pa.Array] = {}
        for name, values in self.ids.items():
            if name in catalogue.ids:
                both = pa.concat_arrays([values, catalogue.ids[name]])
                ids[name] = both.take(pa.array(np.where(sampled, len(values) + new.items, new.rows)))
            else:
                ids[name] = values.take(pa.array(new.rows))
        targets = {name: values[new.rows] for name, values in self.targets.items()}
        for name, values in targets.items():
            if name.startswith(label_column("")):
                values[sampled] = 0
        targets[PLACE_COLUMN] = first + new.rows
        return StagedPart(
            {name: narrow(values) for name, values in numbers.items()},
            {name: encode_column(pa.chunked_array([values])) for name, values in ids.items()},
            targets,
        )


def _undeclared_item_columns(plan: Preparation, config: NegativesConfig, parts: StagedParts) -> list[str]:
    """Returns the id columns that have a single value for every item, in the first part, and are not declared so."""
    known = {config.user, config.item, *config.item_columns, plan.data.group, plan.data.split_key}
    items_B = parts.target(0, ITEM_COLUMN)
    found: list[str] = []
    for name in plan.id_columns:
        codes = parts.codes(0, name)
        if name in known or codes.offsets is not None or len(np.unique(codes.codes)) < _LEAST_ITEMS:
            continue
        pairs = np.unique(np.stack([items_B, codes.codes.astype(np.int64)]), axis=1)
        items, rows = np.unique(items_B, return_counts=True)
        if len(pairs[0]) == len(items) and (rows > 1).sum() >= _LEAST_RECURRING:
            found.append(name)
    return found


def _decoded(values: pa.Array, codes: Codes, rows: Int64Array | None) -> pa.Array:
    """Returns the column of which these are the distinct values and codes, or some rows of it."""
    if rows is not None:
        codes = codes.take(rows)
    with_missing = pa.concat_arrays([values, pa.nulls(1, values.type)])
    cells = with_missing.take(pa.array(codes.codes.astype(np.int64)))
    if codes.offsets is None:
        return cells
    mask = None if codes.missing is None else pa.array(codes.missing)
    return pa.LargeListArray.from_arrays(pa.array(codes.offsets), cells, mask=mask)

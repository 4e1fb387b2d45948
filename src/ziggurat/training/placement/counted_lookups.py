"""How often the rows of a run's tables are looked up, where that was counted again after preparation.

Preparation counts the look-ups of all training rows (:mod:`ziggurat.core.statistics`). A run that took a new plan keeps
the counts by which it was made, so that the order of rows, and what training watches, follow them too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch

from ziggurat.core.batch import Batch
from ziggurat.core.statistics import DatasetStatistics, TableStatistics
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.positions import split_positions
from ziggurat.training.run_folder.run_files import LOOKUPS_FILE, RunFiles, damage_of

Counts = dict[str, npt.NDArray[np.int64]]
"""Table -> how often each of its rows is looked up, (rows,)."""


def count_lookups(batches: Iterable[Batch], layout: Layout) -> tuple[Counts, int]:
    """Returns how often each row is looked up in some batches, and the number of examples in them."""
    ((counts, examples),) = count_in_parts(batches, layout, 1)
    return counts, examples


def count_in_parts(batches: Iterable[Batch], layout: Layout, parts: int) -> list[tuple[Counts, int]]:
    """Returns the same for each of some parts of the batches, which take turns."""
    rows = {table.name: table.rows for table in layout.tables}
    found: list[Counts] = [{name: np.zeros(each, np.int64) for name, each in rows.items()} for _ in range(parts)]
    table_of_key = {key: spec.name for feature, spec in layout.table_of.items() for key in spec.keys_of(feature)}
    examples = [0] * parts
    for number, batch in enumerate(batches):
        counts = found[number % parts]
        examples[number % parts] += batch.size
        sequences = batch.sequences
        if sequences is not None and layout.positions:
            sequences, _ = split_positions(sequences, layout.table_of)
        for part in (batch.bags, sequences):
            if part is None:
                continue
            for key, ids in part.to_dict().items():
                table = counts[table_of_key[key]]
                table += torch.bincount(ids.values().long(), minlength=len(table)).numpy()
    return list(zip(found, examples, strict=True))


def with_lookups(statistics: DatasetStatistics, counts: Mapping[str, npt.NDArray[np.int64]]) -> DatasetStatistics:
    """Returns statistics whose tables are looked up as counted."""
    tables = {name: TableStatistics(name, len(each), each) for name, each in counts.items()}
    return replace(statistics, tables={**statistics.tables, **tables})


def planned_statistics(statistics: DatasetStatistics, files: RunFiles) -> DatasetStatistics:
    """Returns the statistics by which a run plans: those of its dataset, with the look-ups that it has counted since.

    Raises:
        RunFolderError: the stored counts are damaged, or belong to another run.
    """
    return with_lookups(statistics, read_lookups(files, statistics) or {})


def read_lookups(files: RunFiles, statistics: DatasetStatistics | None = None) -> Counts | None:
    """Returns the counts that the run has stored; None if there are none.

    Args:
        files: the files of the run.
        statistics: those of its dataset, with whose tables the counts must agree; None: with any.

    Raises:
        RunFolderError: the file is damaged, or belongs to another run or dataset.
    """
    counts = files.read_arrays(LOOKUPS_FILE, np.int64)
    if counts is None:
        return None
    path, damage = files.folder / LOOKUPS_FILE, damage_of(LOOKUPS_FILE)
    for name, each in counts.items():
        if len(each) and int(each.min()) < 0:
            raise damage.of(path, f"table {name!r}: a row has {int(each.min())} look-ups")
        known = None if statistics is None else statistics.tables.get(name)
        if known is not None and known.rows != len(each):
            raise damage.of(path, f"table {name!r}: counts of {len(each):,} rows, but it has {known.rows:,}")
    return counts

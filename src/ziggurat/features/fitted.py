"""Pass 2 of preparation as a whole: every feature fitted on the training rows, every statistic counted."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ziggurat.core.progress import Progress
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.data.dataset import SPLITS
from ziggurat.data.split import Assignment
from ziggurat.features.fitting import FittedTable, fit_table
from ziggurat.features.measuring import FittedNumbers, fit_numbers, label_rates
from ziggurat.features.numeric import NumericChain
from ziggurat.features.parts import Parts
from ziggurat.features.preparation import Preparation
from ziggurat.features.transform import save_transform
from ziggurat.features.workers import workers


@dataclass(frozen=True, slots=True)
class Fitted:
    """What pass 2 learned; the encoders are saved already.

    Attributes:
        chains: numeric feature -> its fitted chain.
        id_files: (raw column, table) -> the ids of the column's staged values in that table.
    """

    chains: dict[str, NumericChain]
    id_files: dict[tuple[str, str], Path]
    statistics: DatasetStatistics


def fit(
    plan: Preparation,
    parts: Parts,
    assignments: Sequence[Assignment],
    staging: Path,
    encoders: Path,
    progress: Progress,
) -> Fitted:
    """Fit all features and save the transform in ``encoders``; tables are fitted side by side.

    Raises:
        DataError: a label with one class only among the training rows.
    """
    rates = label_rates(plan.targets, parts, assignments, plan.data.source.files)
    shutil.rmtree(encoders, ignore_errors=True)
    columns = {(feature.source_column, feature.table_name) for feature in plan.id_features}
    id_files = {pair: staging / f"ids.{number:05d}.arrow" for number, pair in enumerate(sorted(columns))}
    tables: list[FittedTable] = []
    progress.start("fit", len(plan.tables), "tables")
    with workers(plan.threads, "fit") as pool:
        numbers = pool.submit(fit_numbers, plan, parts, assignments)
        futures: list[Future[FittedTable]] = []
        for name, table in plan.tables.items():
            of_table = {column: path for (column, owner), path in id_files.items() if owner == name}
            futures.append(pool.submit(fit_table, table, parts, assignments, of_table, encoders))
        for done, future in enumerate(futures, start=1):
            tables.append(future.result())
            progress.advance(done)
        fitted_numbers = numbers.result()
    save_transform(encoders, plan.features, plan.targets, fitted_numbers.chains)
    progress.finish(f"{len(plan.features)} features")
    _note_fills(fitted_numbers, progress)
    return Fitted(fitted_numbers.chains, id_files, _statistics(plan, assignments, rates, tables, fitted_numbers))


def _note_fills(numbers: FittedNumbers, progress: Progress) -> None:
    """Say which features were filled without being asked for, the emptiest first."""
    shares = {
        name: numbers.features[name].missing_share for name, chain in numbers.chains.items() if chain.implicit_fill
    }
    filled = sorted(((share, name) for name, share in shares.items() if share > 0), reverse=True)
    if filled:
        listed = ", ".join(f"{name} {share:.1%}" for share, name in filled)
        progress.note(f"missing numbers are filled with the training median: {listed}; add a fill step to choose")


def _statistics(
    plan: Preparation,
    assignments: Sequence[Assignment],
    rates: dict[str, dict[str, float]],
    tables: Sequence[FittedTable],
    numbers: FittedNumbers,
) -> DatasetStatistics:
    rows = sum((np.bincount(assignment, minlength=len(SPLITS)) for assignment in assignments), np.zeros(3, np.int64))
    features = dict(numbers.features)
    for table in tables:
        features.update(table.features)
    return DatasetStatistics(
        rows=dict(zip(SPLITS, rows.tolist(), strict=True)),
        label_rates=rates,
        features={feature.name: features[feature.name] for feature in plan.features},
        tables={**{table.table.name: table.table for table in tables}, **numbers.tables},
    )

"""Pass 2 of preparation: fits every feature on the training rows and computes all statistics."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ziggurat.core.files import explained_writes, sync_folder
from ziggurat.core.progress import Progress
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.data.encoded.manifest import SPLITS
from ziggurat.data.encoded.split import Assignment
from ziggurat.features.config import CategoricalFeature
from ziggurat.features.encoders.compressed.mapped import describe_drift
from ziggurat.features.encoders.encoder import ProxySettings
from ziggurat.features.negatives_config import InBatchNegatives
from ziggurat.features.numeric.chain import NumericChain
from ziggurat.features.preparation.category_fitting import PartsWithCategories, fit_categories
from ziggurat.features.preparation.cluster import Cluster, check_visible
from ziggurat.features.preparation.deciding import numbers_that_tell, values_that_tell
from ziggurat.features.preparation.label_fitting import fit_labels
from ziggurat.features.preparation.numeric_fitting import (
    FittedNumbers,
    check_weights,
    fit_numbers,
)
from ziggurat.features.preparation.own_ids import count_own_ids
from ziggurat.features.preparation.parts import IdFile, StagedParts
from ziggurat.features.preparation.proxy.learned import Learned
from ziggurat.features.preparation.proxy.training import trained_proxies
from ziggurat.features.preparation.table_fitting import FittedTable, fit_table
from ziggurat.features.preparation.workers import workers
from ziggurat.features.preparation_plan import Preparation
from ziggurat.features.saved_transform import save_transform
from ziggurat.objectives.label_figures import LabelFigures


@dataclass(frozen=True, slots=True)
class Fitted:
    """The results of pass 2, except encoders, which are already saved.

    Attributes:
        chains: the fitted chain of each numeric feature.
        id_files: for each (raw column, table), the file of the ids that the table assigns to the column's values.
        labels: figures of the labels' training rows.
        statistics: statistics of rows, labels, features and tables.
        checksum: the checksum of the saved transform.
        parts: the staged parts, with the numbers of encoded features.
    """

    chains: dict[str, NumericChain]
    id_files: dict[tuple[str, str], IdFile]
    labels: dict[str, LabelFigures]
    statistics: DatasetStatistics
    checksum: str
    parts: StagedParts


def fit(
    plan: Preparation,
    parts: StagedParts,
    assignments: Sequence[Assignment],
    staging: Path,
    encoders: Path,
    progress: Progress,
    cluster: Cluster | None = None,
) -> Fitted:
    """Fits all features and saves the transform in ``encoders``; tables are fitted concurrently, here or on a cluster.

    Raises:
        DataError: a label has only one class, or one value, among the training rows, or all their weights are 0.
    """
    check_weights(plan.targets, parts, assignments, plan.data.source.files)
    only_ones = plan.data.negative_label if isinstance(plan.data.negatives, InBatchNegatives) else None
    rates, labels = fit_labels(plan.targets, parts, assignments, plan.data.source.files, only_ones)
    shutil.rmtree(encoders, ignore_errors=True)
    with explained_writes(encoders):
        encoders.mkdir(parents=True, exist_ok=True)
    categories = fit_categories(plan, parts, assignments, staging, encoders, progress)
    if categories.maps:
        parts = PartsWithCategories(parts, plan, assignments, categories)
    columns = {(feature.source_column, feature.table_name) for feature in plan.id_features}
    id_files: dict[str, dict[str, Path]] = {name: {} for name in plan.tables}
    for number, (column, table) in enumerate(sorted(columns)):
        id_files[table][column] = staging / f"ids.{number:05d}.arrow"
    tables: list[FittedTable] = []
    numbers: list[FittedNumbers] = []
    with trained_proxies(plan, parts, assignments, staging, progress) as proxies:
        work = _Work(plan, parts, assignments, id_files, encoders, proxies, on_cluster=cluster is not None)
        progress.start("fit", len(plan.tables), "tables")
        for fitted in _fit_locally(work) if cluster is None else _fit_on_cluster(work, cluster):
            if isinstance(fitted, FittedTable):
                tables.append(fitted)
                progress.advance(len(tables))
            else:
                numbers.append(fitted)
    sync_folder(encoders)
    fitted_numbers = _merge_in_order(plan, numbers)
    checksum = save_transform(
        encoders, plan.configured, plan.targets, fitted_numbers.chains, labels, categories.figures
    )
    progress.finish(f"{len(plan.features)} features")
    _report_implicit_fills(fitted_numbers, progress)
    for each in tables:
        if each.drift:
            progress.note(f"table {each.table.name!r}: {describe_drift(each.drift)}")
    written = {(column, each.table.name): file for each in tables for column, file in each.id_files.items()}
    statistics = _statistics(plan, assignments, rates, tables, fitted_numbers)
    return Fitted(fitted_numbers.chains, written, labels, statistics, checksum, parts)


@dataclass(frozen=True, slots=True)
class _Work:
    """The data that workers share."""

    plan: Preparation
    parts: StagedParts
    assignments: Sequence[Assignment]
    id_files: Mapping[str, Mapping[str, Path]]
    encoders: Path
    proxies: Mapping[ProxySettings, Learned]
    on_cluster: bool

    def table(self, name: str) -> FittedTable:
        encoding = self.plan.tables[name]
        labels = self.binary_labels
        asked = encoding.encoder.proxy
        fitted = fit_table(
            encoding,
            self.parts,
            self.assignments,
            self.id_files[name],
            self.encoders,
            in_use=self.on_cluster,
            proxy=None if asked is None else self.proxies[asked],
        )
        for feature, own_ids in count_own_ids(encoding, labels, self.parts, self.assignments).items():
            fitted.features[feature] = replace(fitted.features[feature], own_ids=own_ids)
        singles = [feature for feature in encoding.features if isinstance(feature, CategoricalFeature)]
        for feature, told in values_that_tell(singles, labels, self.parts, self.assignments).items():
            fitted.features[feature] = replace(fitted.features[feature], tells=told)
        return fitted

    @property
    def binary_labels(self) -> list[str]:
        return [label.name for label in self.plan.targets.labels if label.kind == "binary"]


@dataclass(frozen=True, slots=True)
class _Task:
    """The name of a table to fit, or of a raw numeric column whose features are to be fitted."""

    name: str
    numeric: bool


def _fit_locally(work: _Work) -> Iterator[FittedTable | FittedNumbers]:
    with workers(work.plan.threads, "fit") as pool:
        numbers = pool.submit(_numbers, work)
        futures: list[Future[FittedTable]] = [pool.submit(work.table, name) for name in work.plan.tables]
        for future in futures:
            yield future.result()
        yield numbers.result()


def _fit_on_cluster(work: _Work, cluster: Cluster) -> Iterator[FittedTable | FittedNumbers]:
    tasks = [_Task(name, numeric=False) for name in work.plan.tables]
    tasks += [_Task(name, numeric=True) for name in work.plan.number_columns]
    yield from cluster.run(_fit_one, work, tasks)


def _fit_one(work: _Work, task: _Task) -> FittedTable | FittedNumbers:
    """Runs on a worker: fits one table, or the features of one raw numeric column."""
    check_visible(work.encoders.parent)
    if not task.numeric:
        return work.table(task.name)
    features = [each for each in work.plan.features if each.kind == "numeric" and each.source_column == task.name]
    return _numbers(replace(work, plan=replace(work.plan, features=tuple(features))))


def _numbers(work: _Work) -> FittedNumbers:
    """Fits numeric features, and finds those that tell a label."""
    fitted = fit_numbers(work.plan, work.parts, work.assignments)
    told = numbers_that_tell(work.plan.number_columns, work.binary_labels, work.parts, work.assignments)
    for feature in work.plan.features:
        if feature.name in fitted.features and feature.source_column in told:
            fitted.features[feature.name] = replace(fitted.features[feature.name], tells=told[feature.source_column])
    return fitted


def _merge_in_order(plan: Preparation, numbers: Iterable[FittedNumbers]) -> FittedNumbers:
    """Merges fitted numbers, in the order of the plan's features."""
    merged = FittedNumbers({}, {}, {})
    for each in numbers:
        merged.chains.update(each.chains)
        merged.features.update(each.features)
        merged.tables.update(each.tables)
    names = [feature.name for feature in plan.features]
    return FittedNumbers(
        {name: merged.chains[name] for name in names if name in merged.chains},
        {name: merged.features[name] for name in names if name in merged.features},
        {name: merged.tables[name] for name in names if name in merged.tables},
    )


def _report_implicit_fills(numbers: FittedNumbers, progress: Progress) -> None:
    """Reports which features have an implicit fill, the one with the most missing values first."""
    shares = {
        name: numbers.features[name].missing_share for name, chain in numbers.chains.items() if chain.implicit_fill
    }
    filled = sorted(((share, name) for name, share in shares.items() if share > 0), reverse=True)
    if filled:
        listed = ", ".join(f"{name} {share:.1%}" for share, name in filled)
        progress.note(f"missing numbers are filled with the training median: {listed}; add a fill step to change that")


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

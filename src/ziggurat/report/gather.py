"""Collects the :class:`ReportInputs` of a run folder and trains the baselines to compare with."""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from ziggurat.core.errors import RunFolderError
from ziggurat.core.files import make_folder_of
from ziggurat.core.plan import Plan
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.data.encoded.dataset import Dataset, Split
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.embeddings.fields import Fields, total_flops
from ziggurat.features.config import NumericFeature
from ziggurat.features.encoders.compressed.mapped import MappedEncoder, describe_drift
from ziggurat.features.encoders.vocabulary import VocabularyEncoder
from ziggurat.features.negatives_config import protocol
from ziggurat.features.numeric.steps import Bucketise
from ziggurat.features.preparation.leaks import leaks
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.features.time_inputs import TimeId
from ziggurat.features.transform import Transform
from ziggurat.interactions.block import known_flops
from ziggurat.interactions.counted_flops import FlopsUnknown
from ziggurat.metrics.metric_set import MetricSet
from ziggurat.report.baselines.compare import compare
from ziggurat.report.baselines.store import BASELINES_FILE, BaselineStore
from ziggurat.report.html import write_report
from ziggurat.report.inputs import (
    ComparisonRow,
    FeatureRow,
    ModelPart,
    ModelSize,
    ReportInputs,
    SliceRow,
    TableRow,
    TaskResult,
    access_skew,
)
from ziggurat.report.plan.rows import format_ranks
from ziggurat.towers.model import TowerModel
from ziggurat.training.constant_prediction import collapsed_tasks
from ziggurat.training.evaluate_run import evaluate
from ziggurat.training.experiment import Experiment, to_yaml
from ziggurat.training.perfect_prediction import perfect_tasks
from ziggurat.training.placement.plan_resolution import read_plan
from ziggurat.training.run_folder.metrics_log import read_metrics_log, record_faults
from ziggurat.training.run_folder.run import Run, open_run
from ziggurat.training.run_folder.run_files import PLAN_FILE, read_environment
from ziggurat.training.warm_start.load import read_warm_start

SPLITS: tuple[Literal["validation", "test"], ...] = ("validation", "test")


def report_run(
    run: Run | str | Path,
    out: str | Path | None = None,
    *,
    checkpoint: str = "best",
    baselines: bool = True,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Path:
    """Writes a run's report to one HTML file and returns its path.

    Args:
        run: the run or its folder.
        out: the file; by default ``report.html`` in the run folder.
        checkpoint: the checkpoint whose weights are evaluated.
        baselines: also train LightGBM and logistic regression on the same columns, and compare. Their results are kept
            in ``baselines.json`` of the run folder, so a second report does not train them again.
        prepared: folder of the encoded dataset, if it was moved since the run was trained.
        progress: receives progress.

    Raises:
        RunFolderError: there is no such run, or it has no checkpoint yet.
        DataError: the prepared dataset is missing, or the file cannot be written.
    """
    progress = progress or Silent()
    opened = run if isinstance(run, Run) else open_run(run)
    path = opened.folder / "report.html" if out is None else Path(out)
    step = opened.checkpoints.resolve(checkpoint)
    make_folder_of(path)
    dataset = opened.dataset(prepared)
    measured: dict[Split, MetricSet] = {
        split: evaluate(opened, split, str(step), progress, prepared=prepared)
        for split in SPLITS
        if dataset.split(split).rows
    }
    write_report(path, _inputs(opened, dataset, step, measured, baselines, progress))
    return path


def _inputs(
    run: Run, dataset: Dataset, step: int, measured: Mapping[Split, MetricSet], baselines: bool, progress: Progress
) -> ReportInputs:
    statistics, transform = dataset.statistics(), run.transform()
    tables = run.experiment.layout(dataset.schema).tables
    plan = _plan(run, tables)
    table_rows = _table_rows(run, tables, plan, step)
    evaluated: Split = "test" if "test" in measured else "validation"
    comparison: list[ComparisonRow] = []
    warm_start = read_warm_start(run)
    notes: list[str] = [] if warm_start is None else [f"This run began with a {warm_start.summary()}."]
    if evaluated in measured:
        ours = _our_rows(run, measured[evaluated], plan.world_size)
        store, seed = BaselineStore(run.folder / BASELINES_FILE, run.files.run_id), run.experiment.training.seed
        tasks = run.experiment.tasks(dataset.schema)
        comparison = compare(dataset, evaluated, ours, tasks, seed, store, progress, notes) if baselines else ours
    for metrics in list(measured.values())[:1]:  # validation, if it has rows
        notes.extend(collapsed_tasks(metrics, run.experiment) + perfect_tasks(metrics))
    history = read_metrics_log(run.metrics_path, run.files)
    faults = record_faults(history, run.written_records)
    for table, encoder in transform.encoders.items():
        if isinstance(encoder, MappedEncoder) and encoder.drift:
            notes.append(f"Table {table} continues an earlier map: {describe_drift(encoder.drift)}.")
    notes += [f"The curves are not those of the training: {faults}."] if faults else []
    found = leaks(run.experiment.features, run.experiment.data.labels, statistics.features)
    notes.extend(f"{warning[0].upper()}{warning[1:]}." for warning in found)
    if run.experiment.data.negatives is not None:
        statement = protocol(run.experiment.data.negatives)
        notes.append(f"{statement[0].upper()}{statement[1:]}.")
    if evaluated == "validation":
        notes.append(
            "There is no test split: the metrics below are on the validation rows, which chose the checkpoint."
        )
    return ReportInputs(
        title=run.experiment.name,
        created=datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z"),
        model=_model_size(run.experiment, dataset),
        results=_results(measured),
        history=history,
        best_step=step,
        rows=statistics.rows,
        quarantined_rows=dataset.quarantined_rows,
        features=[_feature_row(name, statistics) for name in statistics.features],
        tables=table_rows,
        rank_bytes=_rank_bytes(plan, tables, table_rows),
        slices=_slices(measured[evaluated], transform) if evaluated in measured else [],
        comparison=comparison,
        notes=notes,
        config_text=to_yaml(run.experiment),
        environment=read_environment(run.folder),
    )


def _plan(run: Run, tables: Sequence[TableSpec]) -> Plan:
    """Returns the plan of a run.

    Raises:
        RunFolderError: it is missing, damaged, or places other tables.
    """
    plan, path = read_plan(run.files), run.folder / PLAN_FILE
    lacking = [table.name for table in tables if plan is None or table.name not in plan.placements]
    if plan is None or lacking:
        fault = "is missing" if plan is None else f"does not place table {lacking[0]!r}"
        raise RunFolderError(
            f"{path}: {fault}", "run `ziggurat train` with the run's config again, which writes it anew"
        )
    return plan


def _results(measured: Mapping[Split, MetricSet]) -> list[TaskResult]:
    """Returns the results of each task in the config's order: the test split if there is one, then validation."""
    found = [(split, each, each.curves(), each.value_bins()) for split, each in measured.items()][::-1]
    return [
        TaskResult(task, split, each[task].compute(), each[task].undefined(), curves.get(task), bins.get(task))
        for task in (found[0][1].tasks if found else ())
        for split, each, curves, bins in found
    ]


def _our_rows(run: Run, metrics: MetricSet, ranks: int) -> list[ComparisonRow]:
    seconds = (run.results or {}).get("seconds")
    name = f"ziggurat {run.experiment.model.title}"
    settings = "as in the config" + (f", {ranks} ranks" if ranks > 1 else "")
    return [
        ComparisonRow(task, name, ours=True, figures=metrics[task].compute(), seconds=seconds, settings=settings)
        for task in metrics.tasks
    ]


def _model_size(experiment: Experiment, dataset: Dataset) -> ModelSize:
    layout = experiment.layout(dataset.schema)
    model, fields = experiment.build_model(layout), Fields(layout).costs()
    parts = [ModelPart(cost.name, cost.parameters, cost.flops or None) for cost in fields]
    parts += [
        ModelPart(name, sum(p.numel() for p in block.parameters()), known_flops(block) or None)
        for name, block in model.named_parts()
    ]
    parameters = model.parameter_count() + sum(cost.parameters for cost in fields)
    note = "matrix products were counted by torch, as the model defines no flops()" if model.counts_flops else ""
    try:
        flops = model.flops() + total_flops(fields)
    except FlopsUnknown as error:
        flops, note = None, error.problem
    compression = model.compression if isinstance(model, TowerModel) else None
    return ModelSize(experiment.model.title, parameters, flops, parts, note, compression)


def _feature_row(name: str, statistics: DatasetStatistics) -> FeatureRow:
    feature = statistics.features[name]
    table = None if feature.table is None else statistics.tables[feature.table]
    return FeatureRow(
        name=name,
        kind=feature.kind,
        missing_share=feature.missing_share,
        coverage=feature.coverage,
        pooling_factor=feature.mean_pooling if table is not None else None,
        cardinality=None if table is None else int((table.accesses > 0).sum()),
        table=feature.table,
        mean=None if feature.numeric is None else feature.numeric.mean,
        std=None if feature.numeric is None else feature.numeric.std,
        skew=None if table is None else access_skew(table.accesses),
    )


def _table_rows(run: Run, tables: Sequence[TableSpec], plan: Plan, step: int) -> list[TableRow]:
    states = run.checkpoints.load(step).shapes("table_optimizer") or {}
    maps = SavedTransform.open(run.folder / ENCODERS).map_bytes()
    state_bytes: dict[str, int] = {}
    for key, shape in states.items():
        table = key.rpartition("/")[0]
        state_bytes[table] = state_bytes.get(table, 0) + 4 * math.prod(shape)
    return [
        TableRow(
            table.name,
            table.rows,
            table.dim,
            table.weight_bytes,
            state_bytes.get(table.name, 0),
            _placement(plan, table),
            maps.get(table.name, 0),
        )
        for table in tables
    ]


def _placement(plan: Plan, table: TableSpec) -> str:
    placement = plan.placements[table.name]
    every = len(placement.ranks) == plan.world_size
    ranks = "every rank" if every else f"rank {format_ranks(placement.ranks)}"
    return f"{placement.sharding.replace('_', '-')}, {ranks}"


def _rank_bytes(plan: Plan, tables: Sequence[TableSpec], rows: Sequence[TableRow]) -> list[int]:
    """Returns the bytes on each rank, empty for a single rank; a shard has its share of its table's state."""
    held = [0.0] * plan.world_size
    for table, row in zip(tables, rows, strict=True):
        for shard in plan.shards(table):
            share = shard.rows.size * shard.columns.size / (table.rows * table.dim)
            held[shard.rank] += share * (row.weight_bytes + row.optimizer_bytes)
    return [round(each) for each in held] if plan.world_size > 1 else []


def _slices(metrics: MetricSet, transform: Transform) -> list[SliceRow]:
    return [
        SliceRow(
            row.task, row.feature, "other" if row.id is None else _value(transform, row.feature, row.id), row.figures
        )
        for row in metrics.compute_slices()
    ]


def _value(transform: Transform, name: str, encoded: int) -> str:
    """Decodes a feature's id to the value that is shown to the reader."""
    feature = next(feature for feature in transform.inputs if feature.name == name)
    if isinstance(feature, NumericFeature):
        return _interval(transform.chains[name].steps[-1], encoded)
    if isinstance(feature, TimeId):
        return feature.describe(encoded)
    encoder = transform.encoders[feature.table_name]
    if encoded == 0:
        return "missing"
    if isinstance(encoder, VocabularyEncoder):
        known = encoded - 1 - encoder.oov_rows
        return str(encoder.keys[known].as_py()) if known >= 0 else "unknown"
    return str(encoded)


def _interval(step: Any, bucket: int) -> str:
    assert isinstance(step, Bucketise)
    if bucket == 0:
        return "missing"
    edges = step.boundaries
    low = f"≥ {edges[bucket - 2]:g}" if bucket > 1 else ""
    high = f"< {edges[bucket - 1]:g}" if bucket - 1 < len(edges) else ""
    return " and ".join(part for part in (low, high) if part)

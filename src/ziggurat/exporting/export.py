"""Exports a run or an ensemble: its encoders, its dense part as a graph, its tables at a chosen precision.

The export ends by predicting with what it wrote. At ``fp32`` the predictions of sample rows must equal the run's to the
bit; at other precisions the difference is stated, with what it does to the figures of the validation split. All is
computed on the CPU without a compiler, whatever the run was trained on.

The members of an ensemble share their encoders. Their dense parts are one graph, which averages their outputs, and each
has tables of its own: what is named ``item`` in the second member is named ``2/item``.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from ziggurat._version import __version__
from ziggurat.core.errors import ConfigError
from ziggurat.core.files import atomic_folder, new_file
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.embeddings.replicated import ReplicatedTable
from ziggurat.exporting.comparison import compared
from ziggurat.exporting.dense_graph import combined_files, dense_files, trained_tensors
from ziggurat.exporting.opened_run import (
    ExportedMember,
    check_new,
    members_of,
    on_cpu,
    open_exportable,
    opened_model,
    recommenders_of,
)
from ziggurat.exporting.reference import reference_of
from ziggurat.exporting.sample_rows import read_rows, write_sample
from ziggurat.exporting.sides import item_columns as item_columns_of
from ziggurat.exporting.table_files import LiveTable, write_tables
from ziggurat.features.transform import Transform
from ziggurat.serving.artefact.dense_program import PROGRAM_FILE, TENSORS_FILE
from ziggurat.serving.artefact.manifest import (
    ENSEMBLE_FORMAT_VERSION,
    FORMAT_VERSION,
    SAMPLE_FILE,
    STATISTICS_FILE,
    TABLES,
    TRANSFORM,
    Manifest,
    Source,
    SourceMember,
    StoredFile,
    TableEntry,
)
from ziggurat.serving.artefact.reference import REFERENCE_FILE
from ziggurat.serving.artefact.row_codec import PRECISIONS, Precision
from ziggurat.serving.model.scorer import Scorer
from ziggurat.training.ensemble.combined import CombinedRecommender
from ziggurat.training.ensemble.ensemble import Ensemble
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.recommender import Recommender
from ziggurat.training.run_folder.run import Run


@dataclass(frozen=True, slots=True)
class Exported:
    """What an export wrote.

    Attributes:
        folder: the export.
        manifest: its manifest.
        bytes: the size of all files.
        table_bytes: the size of the tables' files.
        fp32_bytes: the size that the tables' files have at fp32.
        notes: remarks for the user, such as that the export holds no sample rows, and why.
    """

    folder: Path
    manifest: Manifest
    bytes: int
    table_bytes: int
    fp32_bytes: int
    notes: tuple[str, ...] = ()


def export(
    run: Run | Ensemble | str | Path,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    checkpoint: str = "best",
    prepared: str | Path | None = None,
    item_columns: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Exports a run or an ensemble into a new folder.

    Args:
        run: the run or the ensemble, or its folder.
        out: the folder of the export, which must not exist.
        precision: how the rows of tables are stored: ``fp32``, ``fp16``, ``int8`` or ``int4``.
        checkpoint: ``best``, ``last`` or a step of a run; an ensemble has its own.
        prepared: folder of the encoded dataset, if it has moved since the run was trained; its validation rows are
            predicted both ways.
        item_columns: the raw columns that describe an item, not the user or the context; default: guessed.
        progress: where to show progress.

    Raises:
        ConfigError: the folder exists, the precision is unknown or cannot hold a row, an item column does not exist, a
            checkpoint of an ensemble was asked for, or the model cannot be exported: it has a part from outside the
            package that is no fixed graph of tensor operations.
        RunFolderError: there is no such run or checkpoint, or a member of the ensemble is missing, damaged, or was
            trained on other prepared data.
        DataError: the prepared dataset does not exist, the disk is full, or the export predicts otherwise than the run.
        EnvironmentMismatch: the process is one of several ranks.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision: received {precision!r}", f"choose one of {', '.join(PRECISIONS)}")
    out, progress = Path(out), progress or Silent()
    check_new(out)
    opened = on_cpu(open_exportable(run))
    members = members_of(opened, checkpoint)
    dataset = opened.dataset(prepared)
    described = _describe(opened, dataset, item_columns)
    with opened_model(opened, dataset, members[0].step, progress) as model, atomic_folder(out) as folder:
        manifest = _write(folder, members, model, described, precision, progress)
        manifest.write(folder)
        batch_size = opened.experiment.evaluation.batch_size
        scorer = Scorer.open(folder)
        deviation = compared(scorer, model, dataset, batch_size, precision, progress)
        runs = {member.run.folder: member.run for member in members}
        reference_of(list(runs.values()), scorer, dataset, batch_size, progress).write(folder)
        files = {**manifest.files, REFERENCE_FILE: StoredFile.of(folder / REFERENCE_FILE)}
        figures = manifest.figures or _measured(model, dataset, batch_size, progress)
        manifest = replace(manifest, deviation=deviation, figures=figures, files=dict(sorted(files.items())))
        manifest.write(folder)
    sizes = {name: each.bytes for name, each in manifest.files.items()}
    table_bytes = sum(size for name, size in sizes.items() if name.startswith(f"{TABLES}/"))
    fp32 = sum(table.layout("fp32").bytes for table in manifest.tables)
    return Exported(out, manifest, sum(sizes.values()), table_bytes, fp32, described.notes)


@dataclass(frozen=True, slots=True)
class _Described:
    """What the log says about requests.

    Attributes:
        transform: the transform of the run.
        rows: rows of the log, if its files are still there.
        user_columns: the raw columns of the user and the context; none if they cannot be told from those of items.
        accesses: table -> how often training looks up each of its rows.
        pooling: feature -> how many rows a row of the training data looks up for it on average.
        notes: remarks for the user.
    """

    transform: Transform
    rows: pa.Table | None
    user_columns: tuple[str, ...]
    accesses: dict[str, npt.NDArray[np.int64]]
    pooling: dict[str, float]
    notes: tuple[str, ...]


def _describe(run: Run | Ensemble, dataset: Dataset, chosen: Sequence[str] | None) -> _Described:
    transform = run.transform()
    schema = transform.raw_schema(labelled=False)
    rows, reason = read_rows(run.experiment, schema)
    items = item_columns_of(transform.features, schema, rows, chosen)
    columns = dict.fromkeys(column.source for column in schema.columns)
    user = tuple(name for name in columns if name not in items) if items else ()
    notes: list[str] = []
    if rows is None:
        notes.append(f"it has no sample rows: {reason}")
    if not items:
        notes.append("no column was found that identifies an item: a request to rank encodes all columns of each row")
    statistics = dataset.statistics()
    accesses = {name: table.accesses for name, table in statistics.tables.items()}
    pooling = {name: each.coverage * each.mean_pooling for name, each in statistics.features.items()}
    return _Described(transform, rows, user, accesses, pooling, tuple(notes))


def _write(
    folder: Path,
    members: Sequence[ExportedMember],
    model: Recommender | CombinedRecommender,
    described: _Described,
    precision: Precision,
    progress: Progress,
) -> Manifest:
    """Writes all files but the manifest."""
    run, transform, recommenders = members[0].run, described.transform, recommenders_of(model)
    of_user = {each.name for each in transform.inputs if set(each.log_columns) <= set(described.user_columns)}
    tables = _tables(members, recommenders, of_user, described.pooling)
    for name in (TRANSFORM, TABLES):
        (folder / name).mkdir()
    transform.save(folder / TRANSFORM)
    graph, tensors = _graph(members, model)
    with new_file(folder / PROGRAM_FILE) as path:
        path.write_bytes(graph)
    with new_file(folder / TENSORS_FILE) as path:
        save_file(tensors, path)
    write_sample(folder / SAMPLE_FILE, described.rows, transform.raw_schema(labelled=False))
    known = [table for table in tables if table.live.name in described.accesses]
    with new_file(folder / STATISTICS_FILE) as path:
        save_arrays({table.entry.name: described.accesses[table.live.name] for table in known}, path)
    write_tables(folder / TABLES, tables, precision, progress)
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    is_ensemble = isinstance(model, CombinedRecommender)
    schema = recommenders[0].lookup.layout.schema
    feature_of = {f"{member.prefix}{name}": name for member in members for name in schema.sparse}
    return Manifest(
        source=_source(members),
        precision=precision,
        batch_size=run.experiment.evaluation.batch_size,
        tasks=run.experiment.tasks(transform.schema),
        dense=schema.dense,
        inputs=tuple(feature_of),
        tables=tuple(table.entry for table in tables),
        user_columns=described.user_columns,
        figures={} if is_ensemble else _known_figures(members[0]),
        deviation={},
        files={name: StoredFile.of(folder / name) for name in names},
        trained={} if is_ensemble else trained_tensors(model.part, model.dense_slices(), tensors),
        members=tuple(_source_member(each) for each in members) if is_ensemble else (),
        input_features=feature_of if is_ensemble else {},
        format_version=ENSEMBLE_FORMAT_VERSION if is_ensemble else FORMAT_VERSION,
    )


def _source(members: Sequence[ExportedMember]) -> Source:
    run_id = members[0].run.files.run_id
    if members[0].prefix:
        content = json.dumps([asdict(_source_member(each)) for each in members], sort_keys=True)
        run_id = hashlib.sha256(content.encode()).hexdigest()[:16]
    last = max(member.step for member in members)
    return Source(members[0].run.experiment.name, run_id, last, __version__, torch.__version__)


def _source_member(member: ExportedMember) -> SourceMember:
    return SourceMember(member.run.files.run_id, member.step, dict(member.weights))


def _graph(
    members: Sequence[ExportedMember], model: Recommender | CombinedRecommender
) -> tuple[bytes, dict[str, torch.Tensor]]:
    if isinstance(model, Recommender):
        return dense_files(model.part, model.lookup.layout)
    return combined_files(
        [each.part for each in model.members],
        [each.lookup.layout for each in model.members],
        [member.prefix for member in members],
        model.weights_MC,
    )


def _tables(
    members: Sequence[ExportedMember],
    recommenders: Sequence[Recommender],
    of_user: Collection[str],
    pooling: Mapping[str, float],
) -> list[LiveTable]:
    """Returns the tables of all members."""
    found: list[LiveTable] = []
    for member, recommender in zip(members, recommenders, strict=True):
        lookup, prefix = recommender.lookup, member.prefix
        live = {each.name: each for each in lookup.tensor_slices()}
        checkpoint = member.run.checkpoints.load(member.step)
        of_torch = {table.spec.name for table in lookup.replicated if isinstance(table, ReplicatedTable)}
        for spec in lookup.layout.tables:
            entry = TableEntry(
                name=f"{prefix}{spec.name}",
                rows=spec.rows,
                dim=spec.dim,
                file=f"{len(found):04d}.rows",
                pooling=spec.pooling,
                features=tuple(f"{prefix}{name}" for name in spec.features),
                positions={f"{prefix}{name}": count for name, count in spec.positions.items()},
                side="user" if set(spec.features) <= set(of_user) else "item",
                divides=spec.name in of_torch,
                lookups={
                    f"{prefix}{name}": min(pooling[name], spec.positions.get(name, math.inf))
                    for name in spec.features
                    if name in pooling
                },
            )
            found.append(LiveTable(entry, live[spec.name], checkpoint))
    return found


def _known_figures(member: ExportedMember) -> dict[str, dict[str, float | None]]:
    """Returns the figures of a run's checkpoint, if its training noted them."""
    results = member.run.results or {}
    return _finite(results.get("figures", {}) if results.get("best_step") == member.step else {})


def _measured(
    model: Recommender | CombinedRecommender, dataset: Dataset, batch_size: int, progress: Progress
) -> dict[str, dict[str, float | None]]:
    """Returns the figures of an ensemble on the validation split, if it has rows."""
    blocks = dataset.split("validation")
    if isinstance(model, Recommender) or not blocks.rows:
        return {}
    metrics = evaluate_split(model, blocks, dataset.schema, torch.device("cpu"), batch_size, (), progress)
    return _finite({"validation": metrics.compute()})


def _finite(found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    return {
        split: {name: value if math.isfinite(value) else None for name, value in figures.items()}
        for split, figures in found.items()
    }

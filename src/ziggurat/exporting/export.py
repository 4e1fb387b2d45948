"""Exports a run: its encoders, its dense part as a graph, its tables at a chosen precision.

The export ends by predicting with what it wrote. At ``fp32`` the predictions of sample rows must equal the run's to the
bit; at other precisions the difference is stated, with what it does to the figures of the validation split. All is
computed on the CPU without a compiler, whatever the run was trained on.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import save_file

from ziggurat._version import __version__
from ziggurat.core.errors import ConfigError
from ziggurat.core.files import atomic_folder, explained_writes
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.embeddings.replicated import ReplicatedTable
from ziggurat.exporting.comparison import compared
from ziggurat.exporting.dense_graph import dense_files, trained_tensors
from ziggurat.exporting.opened_run import check_new, on_cpu, open_exportable, opened_recommender
from ziggurat.exporting.reference import reference_of
from ziggurat.exporting.sample_rows import read_rows, write_sample
from ziggurat.exporting.sides import item_columns as item_columns_of
from ziggurat.exporting.table_files import write_tables
from ziggurat.features.config import InputFeature
from ziggurat.features.time_inputs import TimeId, TimeNumber
from ziggurat.features.transform import Transform
from ziggurat.features.vectors import VectorNumber
from ziggurat.serving.artefact.dense_program import PROGRAM_FILE, TENSORS_FILE
from ziggurat.serving.artefact.manifest import (
    SAMPLE_FILE,
    STATISTICS_FILE,
    TABLES,
    TRANSFORM,
    Manifest,
    Source,
    StoredFile,
    TableEntry,
)
from ziggurat.serving.artefact.reference import REFERENCE_FILE
from ziggurat.serving.artefact.row_codec import PRECISIONS, Precision
from ziggurat.serving.model.scorer import Scorer
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
        fp32_bytes: the size of the tables in fp32.
        notes: remarks for the user, such as that the export holds no sample rows, and why.
    """

    folder: Path
    manifest: Manifest
    bytes: int
    table_bytes: int
    fp32_bytes: int
    notes: tuple[str, ...] = ()


def export(
    run: Run | str | Path,
    out: str | Path,
    *,
    precision: Precision = "fp32",
    checkpoint: str = "best",
    prepared: str | Path | None = None,
    item_columns: Sequence[str] | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Exports a run into a new folder.

    Args:
        run: the run or its folder.
        out: the folder of the export, which must not exist.
        precision: how the rows of tables are stored: ``fp32``, ``fp16``, ``int8`` or ``int4``.
        checkpoint: ``best``, ``last`` or a step.
        prepared: folder of the encoded dataset, if it has moved since the run was trained; its validation rows are
            predicted both ways.
        item_columns: the raw columns that describe an item, not the user or the context; default: guessed.
        progress: where to show progress.

    Raises:
        ConfigError: the folder exists, the precision is unknown or cannot hold a row, an item column does not exist, or
            the model cannot be exported: it is an ensemble, or has a part from outside the package that is no fixed
            graph of tensor operations.
        RunFolderError: there is no such run or checkpoint.
        DataError: the prepared dataset does not exist, the disk is full, or the export predicts otherwise than the run.
        EnvironmentMismatch: the process is one of several ranks.
    """
    if precision not in PRECISIONS:
        raise ConfigError(f"precision: received {precision!r}", f"choose one of {', '.join(PRECISIONS)}")
    out, progress = Path(out), progress or Silent()
    check_new(out)
    opened = on_cpu(open_exportable(run))
    dataset = opened.dataset(prepared)
    step = opened.checkpoints.find(checkpoint)
    described = _describe(opened, dataset, item_columns)
    with opened_recommender(opened, dataset, step, progress) as recommender, atomic_folder(out) as folder:
        manifest = _write(folder, opened, recommender, described, step, precision, progress)
        manifest.write(folder)
        batch_size = opened.experiment.evaluation.batch_size
        scorer = Scorer.open(folder)
        deviation = compared(scorer, recommender, dataset, batch_size, precision, progress)
        reference_of(opened, scorer, dataset, batch_size, progress).write(folder)
        files = {**manifest.files, REFERENCE_FILE: StoredFile.of(folder / REFERENCE_FILE)}
        manifest = replace(manifest, deviation=deviation, files=dict(sorted(files.items())))
        manifest.write(folder)
    sizes = {name: each.bytes for name, each in manifest.files.items()}
    table_bytes = sum(size for name, size in sizes.items() if name.startswith(f"{TABLES}/"))
    fp32 = sum(4 * table.rows * table.dim for table in manifest.tables)
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


def _describe(run: Run, dataset: Dataset, chosen: Sequence[str] | None) -> _Described:
    transform = run.transform()
    schema = transform.raw_schema(labelled=False)
    rows, reason = read_rows(run, schema)
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
    run: Run,
    recommender: Recommender,
    described: _Described,
    step: int,
    precision: Precision,
    progress: Progress,
) -> Manifest:
    """Writes all files but the manifest."""
    layout, transform = recommender.lookup.layout, described.transform
    of_user = {feature.name for feature in transform.inputs if _raw_column(feature) in described.user_columns}
    entries = _entries(recommender.lookup, of_user, described.pooling)
    for name in (TRANSFORM, TABLES):
        (folder / name).mkdir()
    transform.save(folder / TRANSFORM)
    graph, tensors = dense_files(recommender.part, layout)
    with explained_writes(folder / TENSORS_FILE):
        (folder / PROGRAM_FILE).write_bytes(graph)
        save_file(tensors, folder / TENSORS_FILE)
    write_sample(folder / SAMPLE_FILE, described.rows, transform.raw_schema(labelled=False))
    counts = {entry.name: described.accesses[entry.name] for entry in entries if entry.name in described.accesses}
    save_arrays(counts, folder / STATISTICS_FILE)
    live = {tensor_slice.name: tensor_slice for tensor_slice in recommender.lookup.tensor_slices()}
    write_tables(folder / TABLES, entries, precision, live, run.checkpoints.load(step), progress)
    results = run.results or {}
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return Manifest(
        source=Source(run.experiment.name, run.files.run_id, step, __version__, torch.__version__),
        precision=precision,
        batch_size=run.experiment.evaluation.batch_size,
        tasks=run.experiment.tasks(transform.schema),
        dense=layout.schema.dense,
        inputs=layout.schema.sparse,
        tables=entries,
        user_columns=described.user_columns,
        figures=_figures(results.get("figures", {}) if results.get("best_step") == step else {}),
        deviation={},
        files={name: StoredFile.of(folder / name) for name in names},
        trained=trained_tensors(recommender.part, recommender.dense_slices(), tensors),
    )


def _raw_column(feature: InputFeature) -> str:
    """Returns the column of the log that an input is made of."""
    match feature:
        case VectorNumber():
            return feature.vector.column
        case TimeNumber() | TimeId():
            return feature.origin.source_column
        case _:
            return feature.source_column


def _entries(lookup: EmbeddingLookup, of_user: Collection[str], pooling: Mapping[str, float]) -> tuple[TableEntry, ...]:
    of_torch = {table.spec.name for table in lookup.replicated if isinstance(table, ReplicatedTable)}
    return tuple(
        TableEntry(
            name=spec.name,
            rows=spec.rows,
            dim=spec.dim,
            file=f"{number:04d}.rows",
            pooling=spec.pooling,
            features=spec.features,
            positions=dict(spec.positions),
            side="user" if set(spec.features) <= set(of_user) else "item",
            divides=spec.name in of_torch,
            lookups={
                name: min(pooling[name], spec.positions.get(name, math.inf))
                for name in spec.features
                if name in pooling
            },
        )
        for number, spec in enumerate(lookup.layout.tables)
    )


def _figures(found: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float | None]]:
    return {
        split: {name: value if math.isfinite(value) else None for name, value in figures.items()}
        for split, figures in found.items()
    }

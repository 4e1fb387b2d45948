"""Preparation: turns raw logs into an encoded dataset with its fitted transform and statistics; resumable, idempotent.

There are three passes, each in a module of this package:

1. ``staging`` reads every raw block once and writes small staged parts with a journal (``.staging/`` inside the target
   folder).
2. ``splitting`` assigns splits; ``negatives`` adds sampled ones if asked; ``fitted`` fits features on the training rows
   and computes statistics.
3. ``encoding`` writes the staged parts to the dataset. The manifest is written last and makes the folder a dataset;
   then the staged parts are deleted.

On a cluster (:mod:`ziggurat.features.preparation.cluster`) each pass is a map: over file ranges, then over tables and
numeric columns, then over files of the dataset. The result is the same, because it does not depend on how rows are
divided.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.core.files import locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.dataset import Dataset, DatasetWriter
from ziggurat.data.encoded.manifest import ENCODERS as ENCODERS
from ziggurat.data.encoded.manifest import MANIFEST_FILE, SPLITS, STATISTICS, manifest, read_manifest, write_manifest
from ziggurat.data.encoded.split import TEST, VALIDATION, FilesSplit
from ziggurat.data.readers.frame.reader import Frame
from ziggurat.data.readers.quarantine import Quarantine
from ziggurat.data.readers.reader import BLOCK_BYTES
from ziggurat.data.readers.source import open_source
from ziggurat.features.assemble import encoded_schema
from ziggurat.features.config import DataConfig, FeatureConfig
from ziggurat.features.outside_encoders import check_outside_encoders
from ziggurat.features.preparation.block_batching import SplitSource
from ziggurat.features.preparation.cluster import Cluster
from ziggurat.features.preparation.cluster_encoding import encode_files
from ziggurat.features.preparation.encoding import StagedRows, encode_parts
from ziggurat.features.preparation.fitted import fit
from ziggurat.features.preparation.negatives import add_negatives
from ziggurat.features.preparation.parts import StagedParts
from ziggurat.features.preparation.splitting import assign
from ziggurat.features.preparation.staging import stage
from ziggurat.features.preparation_plan import Preparation
from ziggurat.features.raw_schema import raw_schema

QUARANTINE = "quarantine.jsonl"
_STAGING = ".staging"


def prepare(
    data: DataConfig,
    features: Sequence[FeatureConfig],
    folder: Path,
    progress: Progress | None = None,
    cluster: Cluster | None = None,
    frame: Frame | None = None,
) -> Path:
    """Prepares a dataset in ``folder``; does nothing if it already contains the dataset of these configs and files.

    If it is interrupted, by a signal or a full disk, the next call resumes after the last staged part, and the result
    is the same to the byte.

    Args:
        data: the ``data`` section of the config.
        features: the features of the config.
        folder: folder of the dataset.
        progress: where to report progress.
        cluster: its workers do the work; it is entered only if there is work. Default: threads of this process.
        frame: the rows, if they are in memory and not in the files of ``data``.

    Returns:
        ``folder``.

    Raises:
        ConfigError: the configs contradict each other.
        DataError: a file cannot be read as declared, a row is bad under ``on_bad_row: fail``, there are no training
            rows, a label has only one class, or the disk is full.
        RunFolderError: the folder contains a different dataset, or another process is preparing it.
        DataError: the manifest of the dataset in it is damaged, or an encoder from outside the package gives other ids
            than when it was fitted.
        FeatureError: an encoder gives no usable ids, or its saved state does not restore it.
    """
    progress = progress or Silent()
    if frame is not None and cluster is not None:
        raise ConfigError("rows in memory cannot be prepared on a cluster", "write them to files, or leave out ray")
    sources = open_sources(data, features, frame=frame)
    prepared = os.path.lexists(folder / MANIFEST_FILE)
    kept = read_manifest(folder)[1].kept if prepared else None
    plan = Preparation.plan(data, features, [item.source.fingerprint() for item in sources], kept)
    staging = folder / _STAGING
    if prepared:
        _check_prepared(folder, plan)
        shutil.rmtree(staging, ignore_errors=True)
        return folder
    with locked_folder(staging, "preparing"), cluster or contextlib.nullcontext():
        parts, quarantine = stage(plan, sources, staging, folder / QUARANTINE, progress, cluster)
        _check_rows(parts, quarantine)
        assignments = assign(data.split, parts)
        details: dict[str, Any] = {}
        if data.negatives is not None:
            sampled = add_negatives(plan, parts, assignments, staging, progress)
            parts, assignments = sampled.parts, sampled.assignments
            details["negatives"] = {"sampled": sampled.counts, "missing": sampled.missing}
        fitted = fit(plan, parts, assignments, staging, folder / ENCODERS, progress, cluster)
        table_rows = {name: table.rows for name, table in fitted.statistics.tables.items()}
        schema = encoded_schema(plan.features, plan.targets, table_rows, fitted.labels)
        rows = StagedRows(plan, fitted.parts, assignments, fitted.chains, fitted.id_files)
        splits = _encode(rows, schema, folder, progress, cluster)
        checksums = {ENCODERS: fitted.checksum, STATISTICS: fitted.statistics.save(folder)}
        files = [str(path) for item in sources for path in item.source.paths]
        rejected = {"rows": quarantine.total, "summary": quarantine.summary()}
        details |= {"sources": files, "quarantined": rejected, **({"kept": plan.kept} if plan.kept else {})}
        content = manifest(plan.fingerprint, schema, data.block_rows, splits, details, checksums)
        write_manifest(folder, content)
        shutil.rmtree(staging)
    return folder


def dataset_fingerprint(
    data: DataConfig,
    features: Sequence[FeatureConfig],
    frame: Frame | None = None,
    kept: Mapping[str, str] | None = None,
) -> str:
    """Returns the fingerprint of the dataset of these configs and files; reads only the heads of the files.

    Args:
        data: the ``data`` section of the config.
        features: the features of the config.
        frame: the rows, if they are in memory.
        kept: as of :meth:`~ziggurat.features.preparation_plan.Preparation.plan`.

    Raises:
        ConfigError, DataError: as :func:`prepare`, for errors that show in configs and heads of files.
    """
    sources = open_sources(data, features, frame=frame)
    return Preparation.plan(data, features, [item.source.fingerprint() for item in sources], kept).fingerprint


def open_sources(
    data: DataConfig, features: Sequence[FeatureConfig], block_bytes: int = BLOCK_BYTES, frame: Frame | None = None
) -> list[SplitSource]:
    """Opens the sources of training, validation and test rows; there is a single one unless files decide the split.

    Raises:
        ConfigError: a file is listed for two splits, or files decide the split of rows in memory.
        DataError: a file is missing, unreadable or not laid out as declared.
    """
    schema = raw_schema(data, features)
    sources = [SplitSource(open_source(data.source, data.folder, schema, block_bytes=block_bytes, frame=frame))]
    if frame is not None and isinstance(data.split, FilesSplit):
        raise ConfigError("data.split: files decide it, but the rows are in memory", "choose another data.split")
    if isinstance(data.split, FilesSplit):
        for split, files in ((VALIDATION, data.split.validation_files), (TEST, data.split.test)):
            if files:
                source = open_source(data.source, data.folder, schema, list(files), block_bytes=block_bytes)
                sources.append(SplitSource(source, split))
    seen: dict[PurePath, int] = {}
    for item in sources:
        for path in item.source.paths:
            place = path.resolve() if isinstance(path, Path) else path
            if seen.setdefault(place, item.split) != item.split:
                raise ConfigError(
                    f"data: {path} is listed for {SPLITS[seen[place]]} and for {SPLITS[item.split]}",
                    "list every file once: source.files for training, split.validation and split.test for the others",
                )
    return sources


def _check_prepared(folder: Path, plan: Preparation) -> None:
    """Checks that a folder contains the dataset of a plan.

    Raises:
        RunFolderError: it contains another one.
    """
    if Dataset(folder).fingerprint != plan.fingerprint:
        raise RunFolderError(
            f"{folder}: contains a dataset prepared from another config, other files or by another version",
            "prepare into another folder, or delete this one",
        )
    check_outside_encoders(folder / ENCODERS, plan.configured)


def _check_rows(parts: StagedParts, quarantine: Quarantine) -> None:
    if not len(parts):
        summary = "; ".join(quarantine.summary())
        rejected = f"; {quarantine.total:,} were rejected: {summary}" if quarantine.total else ""
        raise DataError(f"data: no usable rows{rejected}", "check data.source and the columns' types")


def _encode(
    rows: StagedRows, schema: Schema, folder: Path, progress: Progress, cluster: Cluster | None
) -> dict[str, Any]:
    """Writes the encoded rows of all splits, replacing those of an interrupted run; returns the manifest's splits."""
    for split in SPLITS:
        shutil.rmtree(folder / split, ignore_errors=True)
    if cluster is not None:
        return encode_files(cluster, rows, schema, folder, folder / _STAGING, progress)
    writer = DatasetWriter(folder, schema, rows.plan.data.block_rows)
    encode_parts(rows, writer, progress)
    return writer.close()

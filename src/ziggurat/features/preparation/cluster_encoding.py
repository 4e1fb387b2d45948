"""Pass 3 of preparation on a cluster: each worker writes complete files of the dataset.

A file contains a fixed number of consecutive rows of a split, which the worker reads from the parts that contain them.
So no row passes through the caller, and no two workers write the same file.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.progress import Progress
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.dataset import write_split_file
from ziggurat.data.encoded.manifest import FILE_BLOCKS, SPLITS, Split, split_files
from ziggurat.features.preparation.cluster import Cluster, check_visible
from ziggurat.features.preparation.encoding import StagedRows, to_batches
from ziggurat.features.preparation.workers import workers


@dataclass(frozen=True, slots=True)
class _Work:
    """The data that workers share.

    Attributes:
        rows: the staged rows.
        counts: int64 (parts, splits): number of rows of each split in each part.
        schema: schema of the dataset.
        folder: folder of the dataset.
        temporary: folder for incomplete files.
    """

    rows: StagedRows
    counts: npt.NDArray[np.int64]
    schema: Schema
    folder: Path
    temporary: Path


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the dataset, which contains rows ``[first, stop)`` of split number ``split``."""

    split: int
    name: str
    first: int
    stop: int


def encode_files(
    cluster: Cluster, rows: StagedRows, schema: Schema, folder: Path, temporary: Path, progress: Progress
) -> dict[str, Any]:
    """Writes every staged row to its split, in reading order.

    Args:
        cluster: its workers write the files.
        rows: the staged rows.
        schema: schema of the dataset.
        folder: folder of the dataset.
        temporary: folder for incomplete files, on the same disk.
        progress: where to report progress.

    Returns:
        The splits, in the form of the manifest.
    """
    block_rows = rows.plan.data.block_rows
    counts = np.array([np.bincount(each, minlength=len(SPLITS)) for each in rows.assignments], np.int64)
    sizes: dict[Split, list[int]] = {}
    files: list[_File] = []
    for number, (split, total) in enumerate(zip(SPLITS, counts.sum(axis=0).tolist(), strict=True)):
        sizes[split] = [min(block_rows, total - first) for first in range(0, total, block_rows)]
        for file_number, file in enumerate(split_files(sizes[split])["files"]):
            first = file_number * FILE_BLOCKS * block_rows
            files.append(_File(number, file["name"], first, first + sum(file["blocks"])))
    checksums: dict[Split, list[str]] = {split: [] for split in SPLITS}
    progress.start("encode", sum(rows.parts.rows), "rows")
    done = 0
    work = _Work(rows, counts, schema, folder, temporary)
    for file, written in zip(files, cluster.run(_write_file, work, files), strict=True):
        checksums[SPLITS[file.split]] += written
        done += file.stop - file.first
        progress.advance(done)
    progress.finish(f"{done:,} rows")
    return {split: split_files(sizes[split], checksums[split]) for split in SPLITS}


def _write_file(work: _Work, file: _File) -> list[str]:
    """Runs on a worker: writes one file; returns the checksums of its blocks."""
    check_visible(work.temporary)
    path = work.folder / SPLITS[file.split] / file.name
    temporary = work.temporary / uuid.uuid4().hex
    return write_split_file(path, work.schema, work.rows.plan.data.block_rows, _batches(work, file), temporary)


def _batches(work: _Work, file: _File) -> Iterator[pa.RecordBatch]:
    """Yields the encoded rows of a file, part by part."""
    split, ends = SPLITS[file.split], np.cumsum(work.counts[:, file.split])
    part = int(np.searchsorted(ends, file.first, side="right"))
    with workers(1, "encode") as pool:
        while part < len(ends) and (start := int(ends[part] - work.counts[part, file.split])) < file.stop:
            split_rows = np.flatnonzero(work.rows.assignments[part] == file.split)
            file_rows = split_rows[max(file.first - start, 0) : file.stop - start]
            if len(file_rows):
                yield to_batches(work.rows.encode(pool, part, {split: file_rows}))[split]
            part += 1

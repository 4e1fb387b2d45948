"""Pass 3 of preparation over a cluster: each worker makes whole files of the dataset.

A file holds so many consecutive rows of a split; the worker takes them from the parts that hold them. So no row goes
through the caller, and no two workers write the same file.
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
from ziggurat.data.encoded.dataset import FILE_BLOCKS, SPLITS, split_files, write_split_file
from ziggurat.features.preparation.cluster import Cluster, seen
from ziggurat.features.preparation.encoding import StagedRows, joined
from ziggurat.features.preparation.workers import workers


@dataclass(frozen=True, slots=True)
class _Work:
    """What every worker needs to make any file.

    Attributes:
        counts: int64 (parts, splits), rows of each split in each part.
        spare: a folder for what is not whole yet.
    """

    rows: StagedRows
    counts: npt.NDArray[np.int64]
    schema: Schema
    folder: Path
    spare: Path


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the dataset: rows ``[first, stop)`` of split number ``split``."""

    split: int
    name: str
    first: int
    stop: int


def encode_files(
    cluster: Cluster, rows: StagedRows, schema: Schema, folder: Path, spare: Path, progress: Progress
) -> dict[str, Any]:
    """Write every staged row to its split, in the order in which it was read.

    Args:
        folder: of the dataset.
        spare: a folder on the same disk for what is not whole yet.

    Returns:
        The splits, as the manifest has them.
    """
    block_rows = rows.plan.data.block_rows
    counts = np.array([np.bincount(each, minlength=len(SPLITS)) for each in rows.assignments], np.int64)
    splits: dict[str, Any] = {}
    files: list[_File] = []
    for number, (split, total) in enumerate(zip(SPLITS, counts.sum(axis=0).tolist(), strict=True)):
        splits[split] = split_files([min(block_rows, total - first) for first in range(0, total, block_rows)])
        for place, file in enumerate(splits[split]["files"]):
            first = place * FILE_BLOCKS * block_rows
            files.append(_File(number, file["name"], first, first + sum(file["blocks"])))
    progress.start("encode", sum(rows.parts.rows), "rows")
    done = 0
    for written in cluster.run(_write_file, _Work(rows, counts, schema, folder, spare), files):
        done += written
        progress.advance(done)
    progress.finish(f"{done:,} rows")
    return splits


def _write_file(work: _Work, file: _File) -> int:
    """On a worker: write one file; the number of its rows."""
    seen(work.spare)
    path = work.folder / SPLITS[file.split] / file.name
    spare = work.spare / uuid.uuid4().hex
    write_split_file(path, work.schema, work.rows.plan.data.block_rows, _batches(work, file), spare)
    return file.stop - file.first


def _batches(work: _Work, file: _File) -> Iterator[pa.RecordBatch]:
    """The encoded rows of a file, part by part."""
    split, ends = SPLITS[file.split], np.cumsum(work.counts[:, file.split])
    part = int(np.searchsorted(ends, file.first, side="right"))
    with workers(1, "encode") as pool:
        while part < len(ends) and (begin := int(ends[part] - work.counts[part, file.split])) < file.stop:
            of_split = np.flatnonzero(work.rows.assignments[part] == file.split)
            held = of_split[max(file.first - begin, 0) : file.stop - begin]
            if len(held):
                yield joined(work.rows.encode(pool, part, {split: held}))[split]
            part += 1

"""Makes the blocks of a prepared dataset from raw logs on demand, with fitted encoders: the same bytes, without files.

Block b of a split consists of its rows ``[b · block_rows, (b + 1) · block_rows)`` in reading order, as preparation cuts
them. The file ranges that contain these rows (:mod:`~ziggurat.features.raw_index`) are read, encoded by the transform,
and cut. A stream of raw blocks is therefore equal to the stream of the prepared dataset, bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import DataError
from ziggurat.core.schema import Schema
from ziggurat.core.sealed import sealed
from ziggurat.data.encoded.dataset import arrow_schema
from ziggurat.data.encoded.manifest import ENCODERS, SPLITS, manifest, split_files
from ziggurat.data.encoded.split import TRAIN
from ziggurat.features.config import DataConfig, FeatureConfig
from ziggurat.features.preparation.block_batching import SplitSource
from ziggurat.features.preparation.prepare import open_sources
from ziggurat.features.preparation_plan import Preparation
from ziggurat.features.raw_index import RawIndex
from ziggurat.features.saved_transform import transform_checksum
from ziggurat.features.transform import Transform


@dataclass(frozen=True, slots=True)
class RawDataset:
    """Raw logs as a dataset.

    Attributes:
        fingerprint: fingerprint of the prepared dataset of the same configs and files.
        schema: schema of the encoded rows.
        splits: the blocks of each split, by its name.
        manifest: the manifest of that prepared dataset.
    """

    fingerprint: str
    schema: Schema
    splits: Mapping[str, RawBlocks]
    manifest: Mapping[str, Any]


def open_raw(
    data: DataConfig, features: Sequence[FeatureConfig], encoders: Path, index: Path, checksum: str | None = None
) -> RawDataset:
    """Opens raw files as a dataset.

    Args:
        data: the ``data`` section of the config.
        features: the features of the config.
        encoders: folder of the fitted transform.
        index: folder of the index that :func:`ziggurat.features.raw_index.index_raw` wrote.
        checksum: the checksum that the transform must have, if that was recorded.

    Raises:
        DataError: raw files are gone or have changed, a folder contains no transform or another one, or the index is
            damaged.
    """
    opened, sources = RawIndex.open(index), open_sources(data, features)
    transform = Transform.load(encoders, checksum)
    plan = Preparation.plan(data, features, [item.source.fingerprint() for item in sources])
    if plan.fingerprint != opened.fingerprint:
        raise DataError(
            f"{index}: the raw files or the config have changed since they were indexed", "start the readers again"
        )
    ranges = _EncodedRanges(sources, transform, opened)
    splits = {name: RawBlocks(ranges, opened, number, data.block_rows) for number, name in enumerate(SPLITS)}
    files = {name: split_files(blocks.sizes) for name, blocks in splits.items()}
    details = {"sources": [str(path) for item in sources for path in item.source.paths], "quarantined": opened.rejected}
    recorded = {ENCODERS: transform_checksum(encoders, checksum)}
    content = sealed(manifest(opened.fingerprint, transform.schema, data.block_rows, files, details, recorded))
    return RawDataset(opened.fingerprint, transform.schema, splits, content)


class RawBlocks:
    """The blocks of one split; see :class:`ziggurat.data.encoded.stream.BlockSource`."""

    def __init__(self, ranges: _EncodedRanges, index: RawIndex, split: int, block_rows: int) -> None:
        self._ranges, self._split, self._block_rows = ranges, split, block_rows
        self._ends = np.cumsum(index.rows(split))
        self.rows = int(self._ends[-1])

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of rows of each block."""
        full, rest = divmod(self.rows, self._block_rows)
        return (*[self._block_rows] * full, *[rest] * bool(rest))

    def read(self, block: int) -> pa.RecordBatch:
        """Reads one block.

        Raises:
            DataError: a file is gone, or its rows have changed since it was indexed.
        """
        first = block * self._block_rows
        stop = min(first + self._block_rows, self.rows)
        parts: list[pa.RecordBatch] = []
        number = int(np.searchsorted(self._ends, first, side="right"))
        while first < stop:
            rows = self._ranges.read(number, self._split)
            end = int(self._ends[number])
            first_in_range = first - (end - rows.num_rows)
            parts.append(rows.slice(first_in_range, stop - first))
            first += parts[-1].num_rows
            number += 1
        return pa.concat_batches(parts)


class _EncodedRanges:
    """Reads and encodes ranges of the raw files. Thread-safe."""

    def __init__(self, sources: Sequence[SplitSource], transform: Transform, index: RawIndex) -> None:
        self._sources, self._transform, self._index = sources, transform, index
        self._arrow = arrow_schema(transform.schema)
        self._starts = np.concatenate([[0], np.cumsum(index.rows())])

    def read(self, number: int, split: int) -> pa.RecordBatch:
        """Returns the rows of one split in a range."""
        source, start, end = self._index.file_range(number)
        block = self._sources[source].source.read_block(start, end)
        first, stop = int(self._starts[number]), int(self._starts[number + 1])
        training_B = self._index.splits[first:stop] == TRAIN
        encoded = self._transform.apply(block, places_B=np.where(training_B, np.arange(first, stop), -1)).batch
        if encoded.num_rows != stop - first:
            raise DataError(
                f"{block.file}: {encoded.num_rows} usable rows from line {start.line} on, but {stop - first} were "
                "indexed",
                "restore the file, or prepare again and start the readers again",
            )
        rows = encoded.select(self._arrow.names).cast(self._arrow)
        return rows.take(pa.array(np.flatnonzero(self._index.splits[first:stop] == split)))

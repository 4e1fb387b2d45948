"""Generates logs with planted structure, of any size, in bounded memory; equal configs give equal bytes.

A few threads make chunks, at most a few ahead of the one being written, which are written in order. Next to the log
``STEM.csv`` it writes ``STEM.truth.json``: the config, the planted weights, and the scores of the best possible model.
"""

from __future__ import annotations

import io
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from ziggurat.core.errors import DataError
from ziggurat.core.files import atomic_file, write_json
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.synthetic.chunk import CHUNK_ROWS, Chunk, ChunkMaker
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.truth import Planted, Tally

FORMAT_VERSION = 1


def generate(
    config: GeneratorConfig, out: str | Path, progress: Progress | None = None, threads: int = 0
) -> dict[str, Any]:
    """Writes the log ``out`` and its truth file; returns the truth.

    Both files appear only when complete. ``threads`` 0 means one per core, up to four; it does not affect the bytes.

    Raises:
        DataError: ``out`` exists and is not a generated log, the disk is full, or permission is denied.
    """
    out = Path(out)
    progress = progress or Silent()
    truth_path = truth_file(out)
    if out.exists() and not truth_path.exists():
        raise DataError(
            f"{out} exists and is not a generated log ({truth_path.name} is missing)",
            "choose another name, or delete the file first",
        )
    maker = ChunkMaker(config)
    tallies = [Tally() for _ in config.labels]
    progress.start(f"generating {out.name}", config.rows, "rows")
    with atomic_file(out) as temporary:
        done_rows = 0
        with _SINKS[config.format](config, temporary) as sink:
            for rendered in _in_order(maker, sink, threads or min(4, os.cpu_count() or 1)):
                sink.write(rendered.payload)
                done_rows += rendered.rows
                for total, part in zip(tallies, rendered.tallies, strict=True):
                    total.add(part)
                progress.advance(done_rows)
        truth = _truth(config, maker.planted, tallies)
        size_bytes = temporary.stat().st_size
    write_json(truth_path, truth)
    progress.finish(f"{config.rows:,} rows, {size_bytes / 1e6:,.1f} MB")
    return truth


def truth_file(out: Path) -> Path:
    """Returns the path of a generated log's truth file: ``log.csv`` -> ``log.truth.json``."""
    return out.with_name(f"{out.stem}.truth.json")


@dataclass(frozen=True, slots=True)
class _RenderedChunk:
    """A chunk, rendered for output by the thread that made it."""

    payload: Any
    rows: int
    tallies: list[Tally]


class _Sink(Protocol):
    """A destination of chunks. ``render`` is called in the threads, ``write`` in chunk order."""

    def __init__(self, config: GeneratorConfig, path: Path) -> None: ...
    def __enter__(self) -> _Sink: ...
    def __exit__(self, *error: object) -> None: ...
    def render(self, table: pa.Table) -> Any: ...
    def write(self, payload: Any) -> None: ...


class _TextSink(ABC):
    """A sink that renders rows to bytes and appends them to the file."""

    def __init__(self, config: GeneratorConfig, path: Path) -> None:
        self.config = config
        self.file = path.open("wb")

    def __enter__(self) -> _TextSink:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    @abstractmethod
    def render(self, table: pa.Table) -> bytes:
        """Renders rows to bytes."""

    def write(self, payload: bytes) -> None:
        self.file.write(payload)


class _CsvSink(_TextSink):
    def __enter__(self) -> _CsvSink:
        if self.config.header:
            config = self.config
            names = [*([config.time] if config.time else []), *(c.name for c in (*config.labels, *config.features))]
            empty = pl.DataFrame({name: pl.Series([], dtype=pl.String) for name in names})
            empty.write_csv(self.file, separator=config.delimiter)
        return self

    def render(self, table: pa.Table) -> bytes:
        frame = _frame(table).with_columns(
            pl.col(column.name).cast(pl.List(pl.String)).list.join(column.delimiter) for column in self.config.many
        )
        buffer = io.BytesIO()
        frame.write_csv(buffer, include_header=False, separator=self.config.delimiter)
        return buffer.getvalue()


class _JsonLinesSink(_TextSink):
    def render(self, table: pa.Table) -> bytes:
        buffer = io.BytesIO()
        _frame(table).write_ndjson(buffer)
        return buffer.getvalue()


class _ParquetSink:
    """A sink that writes one zstd-compressed row group per chunk."""

    def __init__(self, config: GeneratorConfig, path: Path) -> None:
        self.path = path
        self.writer: pq.ParquetWriter | None = None

    def __enter__(self) -> _ParquetSink:
        return self

    def __exit__(self, *error: object) -> None:
        if self.writer is not None:
            self.writer.close()

    def render(self, table: pa.Table) -> pa.Table:
        return table

    def write(self, payload: pa.Table) -> None:
        if self.writer is None:
            self.writer = pq.ParquetWriter(self.path, payload.schema, compression="zstd")
        self.writer.write_table(payload)


_SINKS: dict[str, type[_CsvSink] | type[_JsonLinesSink] | type[_ParquetSink]] = {
    "csv": _CsvSink,
    "jsonl": _JsonLinesSink,
    "parquet": _ParquetSink,
}


def _frame(table: pa.Table) -> pl.DataFrame:
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _in_order(maker: ChunkMaker, sink: _Sink, threads: int) -> Iterator[_RenderedChunk]:
    """Yields the chunks of the log in order, made by ``threads`` threads, at most two per thread in memory."""

    def rendered(chunk: int) -> _RenderedChunk:
        made: Chunk = maker.make(chunk)
        return _RenderedChunk(sink.render(made.table), made.table.num_rows, made.tallies)

    chunks = iter(range(-(-maker.config.rows // CHUNK_ROWS)))
    waiting: deque[Future[_RenderedChunk]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for chunk in chunks:
            waiting.append(pool.submit(rendered, chunk))
            if len(waiting) >= 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _truth(config: GeneratorConfig, planted: Planted, tallies: list[Tally]) -> dict[str, Any]:
    return {
        "format": FORMAT_VERSION,
        "labels": {
            label.name: {
                **{name: round(value, 6) for name, value in tally.figures().items()},
                **planted_label,
            }
            for label, tally, planted_label in zip(config.labels, tallies, planted.describe(), strict=True)
        },
        "config": config.model_dump(mode="json"),
    }

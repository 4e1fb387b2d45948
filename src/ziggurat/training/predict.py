"""Raw rows to probabilities, by the run's own transform and weights.

Shape legend: B rows, T labels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import DataError, shorten
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.schema import RawColumn, RawSchema
from ziggurat.data.blocks import RawBlock, arrow_type
from ziggurat.data.columns import Columns
from ziggurat.data.parquet_reader import ParquetSource
from ziggurat.data.parquet_rows import ParquetRows
from ziggurat.data.quarantine import Quarantine
from ziggurat.data.reader import Source
from ziggurat.data.source import open_source
from ziggurat.data.table_reader import read_table
from ziggurat.features.transform import Transform
from ziggurat.training.engine import pick_device, process_group
from ziggurat.training.output import open_output, output_suffix
from ziggurat.training.recommender import assemble
from ziggurat.training.run import Run, open_run
from ziggurat.training.state import restore

Table = pa.Table | pl.DataFrame | Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Predicted:
    """What :func:`predict_files` did.

    Attributes:
        rows: rows written.
        quarantined: rows that could not be read, set aside with their reasons.
        quarantine: the file that holds those.
    """

    rows: int
    quarantined: int
    quarantine: Path


class Predictor:
    """A trained run, ready to score raw rows; use it in a ``with`` block.

    Args:
        run: the run or its folder.
        checkpoint: ``best``, ``last`` or a step.

    Raises:
        RunFolderError: no such run or checkpoint.
    """

    def __init__(self, run: Run | str | Path, checkpoint: str = "best") -> None:
        check_engine()
        self.run = run if isinstance(run, Run) else open_run(run)
        self.transform = Transform.load(self.run.folder / "encoders")
        self.labels = self.transform.schema.labels
        self._device = pick_device(self.run.experiment.training.device)
        self._batch_size = self.run.experiment.evaluation.batch_size
        self._open = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.enter_context(process_group(self._device))
            self.recommender = assemble(self.run.experiment, self.transform.schema, self._device).recommender
            restore(self.recommender, self.run.checkpoints.load(checkpoint))
            self.recommender.eval()
            self._open = stack.pop_all()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def predict(self, rows: Table) -> npt.NDArray[np.float32]:
        """Probabilities (B, T) of rows in memory, by column name; columns beyond the features are ignored.

        Raises:
            DataError: a column is missing, or a row cannot be encoded (the first such row is named).
        """
        block = read_table(_arrow(rows), self.transform.raw_schema(labelled=False))
        kept, probabilities_BT = self.predict_block(block)
        assert len(kept) == len(block.lines)
        return probabilities_BT

    def predict_block(
        self, block: RawBlock, quarantine: Quarantine | None = None
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """(positions of the rows that could be encoded, their probabilities (B, T)).

        Raises:
            DataError: a row cannot be encoded, and there is no quarantine.
        """
        encoded = self.transform.apply(block, labelled=False)
        (quarantine or Quarantine(None, "fail")).add(encoded.bad)
        columns = Columns([encoded.batch], self.transform.schema, labelled=False)
        parts = [np.empty((0, len(self.labels)), np.float32)]
        with torch.no_grad():
            for start in range(0, columns.rows, self._batch_size):
                rows = np.arange(start, min(start + self._batch_size, columns.rows))
                logits_BT, _ = self.recommender(columns.batch(rows).to(self._device))
                parts.append(torch.sigmoid(logits_BT).cpu().numpy())
        return encoded.kept_rows, np.concatenate(parts)


def predict(run: Run | str | Path, rows: Table, checkpoint: str = "best") -> npt.NDArray[np.float32]:
    """Probabilities (B, T) of rows in memory: a pyarrow Table, a polars DataFrame or a mapping of columns.

    Each call loads the run; for many calls keep a :class:`Predictor`.
    """
    with Predictor(run, checkpoint) as predictor:
        return predictor.predict(rows)


def predict_files(
    run: Run | str | Path,
    files: Sequence[str],
    out: Path,
    checkpoint: str = "best",
    progress: Progress | None = None,
) -> Predicted:
    """Score raw files and write their rows, every column kept in its place, with a column ``probability``
    (``probability:LABEL`` for several labels) behind. From Parquet to Parquet, columns keep their types. Rows that
    cannot be read go to ``OUT.quarantine.jsonl``; the others keep their order.

    Args:
        run: the run or its folder.
        files: paths, folders or globs, of the format in the run's config.
        out: ``.csv``, ``.tsv``, ``.jsonl`` or ``.parquet``; appears whole or not at all.
        checkpoint: ``best``, ``last`` or a step.
        progress: where to show it.

    Raises:
        ConfigError: the suffix of ``out`` names no format.
        DataError: files that cannot be read as declared, an output that cannot be written or is one of the files.
    """
    progress = progress or Silent()
    quarantine_path = out.with_name(out.name + ".quarantine.jsonl")
    suffix = output_suffix(out)
    with Predictor(run, checkpoint) as predictor:
        found = _find(predictor, files, keep_types=suffix == ".parquet")
        for path in (out, quarantine_path):
            _check_no_input(path, found.source.paths)
        names = ["probability"] if len(predictor.labels) == 1 else [f"probability:{name}" for name in predictor.labels]
        taken = [name for name in names if name in found.schema.names]
        if taken:
            raise DataError(f"the files have a column {taken[0]!r} already", "rename it")
        quarantine_path.unlink(missing_ok=True)
        schema = found.schema
        for name in names:
            schema = schema.append(pa.field(name, pa.float32()))
        rows = 0
        progress.start("predict", found.source.total_bytes, "bytes")
        with (
            Quarantine(quarantine_path, "quarantine") as quarantine,
            open_output(out, schema, found.delimiters) as output,
        ):
            for block, done in _with_bytes(found.source.blocks(), [file.size_bytes for file in found.source.files]):
                kept, probabilities_BT = predictor.predict_block(block, quarantine)
                table = found.rows(block, kept)
                for name, column_B in zip(names, probabilities_BT.T, strict=True):
                    table = table.append_column(name, pa.array(np.ascontiguousarray(column_B)))
                output.write(table)
                rows += table.num_rows
                progress.advance(done)
            refused = quarantine.total
        progress.finish()
    if not refused:
        quarantine_path.unlink(missing_ok=True)
    return Predicted(rows, refused, quarantine_path)


@dataclass(frozen=True, slots=True)
class _Found:
    """Files to predict.

    Attributes:
        source: reads what the features need, and with ``own`` None the columns carried along.
        schema: of the rows that :meth:`rows` hands out.
        delimiters: list column -> what joins its values in text.
        own: the rows as they stand in the files.
    """

    source: Source
    schema: pa.Schema
    delimiters: dict[str, str]
    own: ParquetRows | None = None

    def rows(self, block: RawBlock, kept: npt.NDArray[np.int64]) -> pa.Table:
        """The rows of ``block`` at the positions ``kept``, with all columns."""
        if self.own is not None:
            return self.own.take(block.file, block.lines[kept])
        return block.table.take(pa.array(kept))


def _find(predictor: Predictor, files: Sequence[str], keep_types: bool) -> _Found:
    """Open ``files``; with ``keep_types`` the columns of Parquet files come out in the types they have there."""
    config = predictor.run.experiment.data.source
    needed = predictor.transform.raw_schema(labelled=False)
    source = open_source(config, Path(), needed, files)
    delimiters = {column.name: column.delimiter for column in needed.columns if column.many}
    if keep_types and isinstance(config, ParquetSource):
        own = ParquetRows(source.files)
        return _Found(source, own.schema, delimiters, own)
    others = source.other_columns()
    schema = _in_file_order((*needed.columns, *others), source.column_names())
    source = open_source(config, Path(), schema, files, carried=[column.name for column in others])
    return _Found(source, pa.schema([(column.name, arrow_type(column)) for column in schema.columns]), delimiters)


def _check_no_input(path: Path, inputs: Sequence[Path]) -> None:
    """Refuse to write over a file that is being read, be it through a link."""
    if path.exists() and any(path.samefile(file) for file in inputs):
        raise DataError(f"{path}: is one of the files to read, writing would destroy it", "choose another output")


def _in_file_order(columns: Sequence[RawColumn], names: Sequence[str]) -> RawSchema:
    """``columns`` in the order of ``names``; those not named come last."""
    places = {name: place for place, name in enumerate(names)}
    return RawSchema(tuple(sorted(columns, key=lambda column: places.get(column.name, len(places)))))


def _with_bytes(blocks: Iterator[RawBlock], sizes: list[int]) -> Iterator[tuple[RawBlock, int]]:
    """Each block with the bytes of all files that are read by then."""
    for block in blocks:
        whole = sum(sizes[: block.end.file])
        inside = block.source_bytes if block.end.offset else 0
        yield block, whole + inside


def _arrow(rows: Table) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pl.DataFrame):
        return rows.to_arrow()
    try:
        if isinstance(rows, Mapping):
            return pa.table({name: pa.array(values) for name, values in rows.items()})
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.table(rows)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise DataError(
            f"<rows in memory>: no table can be made of them ({error})",
            "give each column values of one type, as many as every other column has",
        ) from error
    raise DataError(
        f"<rows in memory>: received {shorten(rows)} ({type(rows).__name__})",
        "pass a pyarrow Table, a polars or pandas DataFrame, or a mapping from column names to values",
    )

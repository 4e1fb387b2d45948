"""Predicts the probabilities of raw rows with the transform and the weights of a run.

Shape legend: B rows, T labels.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
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
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.file_heads import check_columns
from ziggurat.data.readers.rejection_reasons import row_location, split_hint
from ziggurat.data.readers.table_reader import NAME, read_table
from ziggurat.features.transform import Transform
from ziggurat.storage.prefetcher import TooManyRows
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.process_group import pick_device, process_group
from ziggurat.training.run import Run, open_run

Table = pa.Table | pl.DataFrame | Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class ScoredBlock:
    """The predictions for a block.

    Attributes:
        kept: int64, positions in the block of the rows that were scored.
        probabilities_BT: the probabilities of these rows.
        bad: the rows that the reader or the transform rejected, by line.
    """

    kept: npt.NDArray[np.int64]
    probabilities_BT: npt.NDArray[np.float32]
    bad: list[BadRow]


class Predictor:
    """Scores raw rows with a trained run; use it in a ``with`` block.

    Args:
        run: the run or its folder.
        checkpoint: ``best``, ``last`` or a step.

    Attributes:
        note: a note for the user about the weights, if any.

    Raises:
        RunFolderError: there is no such run or checkpoint.
    """

    def __init__(self, run: Run | str | Path, checkpoint: str = "best") -> None:
        check_engine()
        self.run = run if isinstance(run, Run) else open_run(run)
        self.transform = Transform.load(self.run.folder / "encoders")
        self.labels = self.transform.schema.labels
        self._device = pick_device(self.run.experiment.training.device)
        self._batch_size = self.run.experiment.evaluation.batch_size
        self._resources = contextlib.ExitStack()
        with contextlib.ExitStack() as stack:
            stack.enter_context(process_group(self._device))
            layout = self.run.experiment.layout(self.transform.schema)
            opening = open_recommender(self.run, layout, self._device, prepared=None, checkpoint=checkpoint)
            opened = stack.enter_context(opening)
            self.recommender, self.note = opened.recommender, opened.note
            self.recommender.eval()
            self._resources = stack.pop_all()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()

    def predict(self, rows: Table) -> npt.NDArray[np.float32]:
        """Returns the probabilities (B, T) of rows in memory; columns that no feature needs are ignored.

        Raises:
            DataError: columns are missing (all are named), or a row cannot be encoded (the first such row is named).
        """
        table, needed = _to_arrow(rows), self.transform.raw_schema(labelled=False)
        check_columns(NAME, table.column_names, needed)
        scored = self.score(read_table(table, needed))
        if scored.bad:
            problem, hint = split_hint(scored.bad[0].reason)
            raise DataError(f"{row_location(scored.bad[0])}: {problem}", hint or "correct the row, or leave it out")
        return scored.probabilities_BT

    def score(self, block: RawBlock) -> ScoredBlock:
        """Returns the probabilities of the rows of a block that can be encoded, and the other rows."""
        encoded = self.transform.apply(block, labelled=False)
        columns = Columns([encoded.batch], self.transform.schema, labelled=False)
        parts = [np.empty((0, len(self.labels)), np.float32)]
        with torch.no_grad():
            for start in range(0, columns.rows, self._batch_size):
                rows = np.arange(start, min(start + self._batch_size, columns.rows))
                parts += self._probabilities(columns, rows)
        return ScoredBlock(encoded.kept_rows, np.concatenate(parts), encoded.bad)

    def _probabilities(self, columns: Columns, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.float32]]:
        """Returns the probabilities of some rows; splits them in half if memory cannot hold all rows they look up."""
        try:
            logits_BT, _ = self.recommender(columns.batch(rows).to(self._device))
        except TooManyRows:
            if len(rows) == 1:
                raise
            return [part for half in np.array_split(rows, 2) for part in self._probabilities(columns, half)]
        return [torch.sigmoid(logits_BT).cpu().numpy()]


def predict(run: Run | str | Path, rows: Table, checkpoint: str = "best") -> npt.NDArray[np.float32]:
    """Returns the probabilities (B, T) of rows in memory: a pyarrow Table, a polars DataFrame or a mapping of columns.

    Each call loads the run; use a :class:`Predictor` for many calls.
    """
    with Predictor(run, checkpoint) as predictor:
        return predictor.predict(rows)


def _to_arrow(rows: Table) -> pa.Table:
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

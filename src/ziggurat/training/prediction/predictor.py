"""Raw rows to probabilities, by the run's own transform and weights.

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
class Scored:
    """What a run says of a block.

    Attributes:
        kept: int64, positions in the block of the rows that were scored.
        probabilities_BT: of these rows.
        bad: the rows that the reader or the transform refused, by line.
    """

    kept: npt.NDArray[np.int64]
    probabilities_BT: npt.NDArray[np.float32]
    bad: list[BadRow]


class Predictor:
    """A trained run, ready to score raw rows; use it in a ``with`` block.

    Args:
        run: the run or its folder.
        checkpoint: ``best``, ``last`` or a step.

    Attributes:
        note: what is to be known of its weights, if anything.

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
            layout = self.run.experiment.layout(self.transform.schema)
            opened = open_recommender(self.run, layout, self._device, prepared=None, checkpoint=checkpoint)
            found = stack.enter_context(opened)
            self.recommender, self.note = found.recommender, found.note
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
            DataError: columns are missing (all are named), or a row cannot be encoded (the first such row is named).
        """
        table, needed = _arrow(rows), self.transform.raw_schema(labelled=False)
        check_columns(NAME, table.column_names, needed)
        scored = self.score(read_table(table, needed))
        if scored.bad:
            problem, hint = split_hint(scored.bad[0].reason)
            raise DataError(f"{row_location(scored.bad[0])}: {problem}", hint or "correct the row, or leave it out")
        return scored.probabilities_BT

    def score(self, block: RawBlock) -> Scored:
        """The rows of a block that can be encoded, scored, and those that cannot."""
        encoded = self.transform.apply(block, labelled=False)
        columns = Columns([encoded.batch], self.transform.schema, labelled=False)
        parts = [np.empty((0, len(self.labels)), np.float32)]
        with torch.no_grad():
            for start in range(0, columns.rows, self._batch_size):
                rows = np.arange(start, min(start + self._batch_size, columns.rows))
                parts += self._probabilities(columns, rows)
        return Scored(encoded.kept_rows, np.concatenate(parts), encoded.bad)

    def _probabilities(self, columns: Columns, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.float32]]:
        """Of some rows, half of them at a time where memory has no room for what all look up."""
        try:
            logits_BT, _ = self.recommender(columns.batch(rows).to(self._device))
        except TooManyRows:
            if len(rows) == 1:
                raise
            return [part for half in np.array_split(rows, 2) for part in self._probabilities(columns, half)]
        return [torch.sigmoid(logits_BT).cpu().numpy()]


def predict(run: Run | str | Path, rows: Table, checkpoint: str = "best") -> npt.NDArray[np.float32]:
    """Probabilities (B, T) of rows in memory: a pyarrow Table, a polars DataFrame or a mapping of columns.

    Each call loads the run; for many calls keep a :class:`Predictor`.
    """
    with Predictor(run, checkpoint) as predictor:
        return predictor.predict(rows)


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

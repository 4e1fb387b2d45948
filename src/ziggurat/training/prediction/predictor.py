"""Predicts raw rows with the transform and the weights of a run, or of an ensemble of runs.

Shape legend: B rows, T labels, C columns of all labels.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import DataError, EnvironmentMismatch, RunFolderError
from ziggurat.core.memory import explained_thread_limit
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.readers.advice import hint_for_prediction
from ziggurat.data.readers.blocks import BadRow, RawBlock
from ziggurat.data.readers.rejection_reasons import row_location, split_hint
from ziggurat.data.readers.rows_in_memory import Table, to_arrow
from ziggurat.data.readers.table_reader import read_table
from ziggurat.objectives.task import column_slices
from ziggurat.parallel.environment import has_other_ranks
from ziggurat.storage.prefetcher import TooManyRows
from ziggurat.training.ensemble.combined import CombinedRecommender, check_no_checkpoint, open_model
from ziggurat.training.ensemble.ensemble import Ensemble, open_run_or_ensemble
from ziggurat.training.prediction.forward_threads import forward_threads, one_ahead
from ziggurat.training.prediction.not_finite import damaged_rows, largest_input
from ziggurat.training.prediction.users import Users
from ziggurat.training.process_group import pick_device, process_group, refuse_fork
from ziggurat.training.recommender import Recommender
from ziggurat.training.run_folder.run import Run

Submit = Callable[..., Future[Any]]
"""Starts a call in another thread."""

LARGE_BYTES = 16 * 2**20
"""Bytes of a model that are freed at once when it is closed, at the price of a garbage collection of .1 to .2 s; a
smaller one may wait for the next collection."""


@dataclass(frozen=True, slots=True)
class ScoredBlock:
    """The predictions for a block.

    Attributes:
        kept: int64, positions in the block of the rows that were scored.
        predictions_BT: the predictions for these rows: probabilities, or numbers in the labels' units.
        further: for each label, further predictions (B,) by name: of each quantile, the probability of each level.
        bad: the rows that the reader or the transform rejected, by line.
    """

    kept: npt.NDArray[np.int64]
    predictions_BT: npt.NDArray[np.float32]
    further: dict[str, dict[str, npt.NDArray[np.float32]]]
    bad: list[BadRow]


class Predictor:
    """Scores raw rows with a trained run or an ensemble; use it in a ``with`` block, or call :meth:`close`.

    Several predictors may be open in a process, beside a training or not, and be opened and closed by different
    threads in any order. Threads may share a predictor; they take turns with the model.

    Args:
        run: the run or the ensemble, or its folder. Of an ensemble, rows are read and encoded once, and each member
            computes its outputs from them.
        checkpoint: ``best``, ``last`` or a step of a run; an ensemble has its own.

    Attributes:
        run: the run or the ensemble.
        note: a note for the user about the weights, if any.
        tasks: the labels, in the order of the predictions.

    Raises:
        RunFolderError: there is no such run or checkpoint, or its weights are not finite; of an ensemble, the message
            names the member.
        ConfigError: a checkpoint of an ensemble was asked for.
        EnvironmentMismatch: the process is one of several ranks.
        ForkedProcess: the process was forked from one that had computed.
    """

    def __init__(self, run: Run | Ensemble | str | Path, checkpoint: str = "best") -> None:
        check_engine()
        refuse_fork()
        if has_other_ranks():
            raise EnvironmentMismatch(
                f"prediction runs in one process, but a launcher started {os.environ['WORLD_SIZE']} ranks",
                "predict without torchrun and --nproc; for more speed, split the files and start several processes",
            )
        self.run = run if isinstance(run, Run | Ensemble) else open_run_or_ensemble(run)
        check_no_checkpoint(self.run, checkpoint)
        self.transform = self.run.transform()
        self.labels = self.transform.schema.labels
        self.tasks = self.run.experiment.tasks(self.transform.schema)
        self._checkpoint = checkpoint
        self._device = pick_device(self.run.experiment.training.device)
        self._batch_size = self.run.experiment.evaluation.batch_size
        self._users = Users(f"{self.run.folder}: this predictor")
        self._turn = threading.Lock()
        with explained_thread_limit(), contextlib.ExitStack() as stack:
            with process_group(self._device):  # the lookup needs it only while it is assembled
                opening = open_model(
                    self.run, self.transform.schema, self._device, prepared=None, checkpoint=checkpoint
                )
                opened = stack.enter_context(opening)
            self._recommender: Recommender | CombinedRecommender | None = opened.recommender
            self.note = opened.note
            self._recommender.eval()
            self._side_by_side = self._recommender.is_shareable
            self._resources = stack.pop_all()

    def __enter__(self) -> Predictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Waits for the predictions that are being made, and releases the model. A second call does nothing.

        In a forked process it does nothing either: the model is the parent's.
        """
        if self._users.end():
            size = sum(each.tensor.nbytes for each in self.recommender.tensor_slices())
            self._recommender = None
            self._resources.close()
            if size >= LARGE_BYTES:  # tables and their optimizers refer to each other: only a collection frees them
                gc.collect()

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._users.ended

    @property
    def recommender(self) -> Recommender | CombinedRecommender:
        """The model.

        Raises:
            PredictorClosed: the predictor is closed.
        """
        found = self._recommender
        if found is None:
            raise self._users.error()
        return found

    def predict(self, rows: Table) -> npt.NDArray[np.float32]:
        """Returns the predictions (B, T) for rows in memory; columns that no feature needs are ignored.

        They are probabilities, or numbers in the labels' units.

        Raises:
            DataError: columns are missing (all are named), a row cannot be encoded (the first such row is named), or
                the model gives a row no finite number.
            RunFolderError: a row of an embedding table that is looked up is not finite; the message names it.
            PredictorClosed: the predictor is closed.
            ForkedProcess: the process was forked after the predictor was opened.
        """
        with self._users.entered():
            needed = self.transform.raw_schema(labelled=False)
            scored = self._score(read_table(to_arrow(rows, needed), needed))
        if scored.bad:
            problem, hint = split_hint(scored.bad[0].reason)
            raise DataError(
                f"{row_location(scored.bad[0])}: {problem}",
                hint_for_prediction(hint or "correct the row, or leave it out"),
            )
        return scored.predictions_BT

    def score(self, block: RawBlock) -> ScoredBlock:
        """Returns the predictions for the rows of a block that can be encoded, and the other rows.

        Raises:
            DataError: the model gives a row no finite number.
            RunFolderError, PredictorClosed, ForkedProcess: as :meth:`predict`.
        """
        with self._users.entered():
            return self._score(block)

    def score_blocks(self, blocks: Iterator[RawBlock]) -> Generator[tuple[RawBlock, ScoredBlock]]:
        """Yields blocks with their predictions, in order; while one is used, the next one is predicted.

        Batches are predicted by several threads at once, if every part of the model is the package's. The generator is
        to be closed before the predictor, also after an error.

        Raises:
            DataError, RunFolderError, PredictorClosed, ForkedProcess: as :meth:`score`; and what ``blocks`` raises.
        """
        with forward_threads(self._device) as threads:

            def start(block: RawBlock) -> Callable[[], ScoredBlock]:
                with self._users.entered():
                    return self._start(block, threads.submit)

            yield from one_ahead(blocks, start)

    def _score(self, block: RawBlock) -> ScoredBlock:
        return self._start(block, None)()

    def _start(self, block: RawBlock, submit: Submit | None) -> Callable[[], ScoredBlock]:
        """Encodes a block and starts the predictions of its batches; what it returns waits for them.

        Args:
            block: the block.
            submit: starts a call in another thread; None to predict in this one, when the result is asked for.
        """
        encoded = self.transform.apply(block, labelled=False)
        columns = Columns([encoded.batch], self.transform.schema, labelled=False)
        starts = range(0, columns.rows, self._batch_size)
        batches = [np.arange(start, min(start + self._batch_size, columns.rows)) for start in starts]
        if submit is None:
            results = (self._columns(columns, rows) for rows in batches)
        else:
            futures = [submit(self._columns, columns, rows, self._side_by_side) for rows in batches]
            results = (future.result() for future in futures)

        def finish() -> ScoredBlock:
            parts = [np.empty((0, sum(task.columns for task in self.tasks)), np.float32)]
            for columns_BC in itertools.chain.from_iterable(results):
                finite_B = torch.isfinite(columns_BC).all(dim=1)
                if not bool(finite_B.all()):
                    row = sum(map(len, parts)) + int((~finite_B).nonzero()[0])
                    line = int(block.lines[encoded.kept_rows[row]])
                    raise self._not_finite(columns, row, f"{block.file}, line {line}")
                parts.append(columns_BC.numpy())
            predictions_BT, further = self._predicted(np.concatenate(parts))
            return ScoredBlock(encoded.kept_rows, predictions_BT, further, encoded.bad)

        return finish

    def _predicted(
        self, columns_BC: npt.NDArray[np.float32]
    ) -> tuple[npt.NDArray[np.float32], dict[str, dict[str, npt.NDArray[np.float32]]]]:
        """Returns the predictions (B, T), and further ones of each label."""
        predictions = np.empty((len(columns_BC), len(self.tasks)), np.float32)
        further: dict[str, dict[str, npt.NDArray[np.float32]]] = {}
        for number, (task, at) in enumerate(zip(self.tasks, column_slices(self.tasks), strict=True)):
            if task.is_probability:
                predictions[:, number] = torch.sigmoid(torch.from_numpy(columns_BC[:, at.start])).numpy()
            else:
                predictions[:, number] = task.predictions(columns_BC[:, at])
                found = task.further(columns_BC[:, at])
                further[task.name] = {name: values.astype(np.float32) for name, values in found.items()}
        return predictions, further

    def _columns(self, columns: Columns, rows: npt.NDArray[np.int64], side_by_side: bool = False) -> list[Tensor]:
        """Returns the columns of some rows; splits them in half if memory cannot hold all rows they look up.

        Args:
            columns: the encoded rows.
            rows: the rows to predict.
            side_by_side: whether other threads may use the dense part meanwhile; they take turns with the tables.
        """
        batch, recommender = columns.batch(rows).to(self._device), self.recommender
        try:
            with torch.no_grad(), contextlib.ExitStack() as turn:
                turn.enter_context(self._turn)
                predict = recommender.looked_up(batch)
                if side_by_side:
                    turn.close()
                return [predict().cpu()]
        except TooManyRows:
            if len(rows) == 1:
                raise
            halves = np.array_split(rows, 2)
            return [part for half in halves for part in self._columns(columns, half, side_by_side)]

    def _not_finite(self, columns: Columns, row: int, where: str) -> DataError | RunFolderError:
        """Returns the error for an encoded row whose output is not a finite number."""
        batch = columns.batch(np.array([row])).to(self._device)
        recommender = self.recommender
        parts = recommender.members if isinstance(recommender, CombinedRecommender) else [recommender]
        for number, part in enumerate(parts):
            with self._turn:
                damaged = damaged_rows(part, batch)
            if damaged is None:
                continue
            if isinstance(self.run, Ensemble):
                member = self.run.members[number]
                return RunFolderError(
                    f"{where}: cannot be predicted: {damaged} (member {member} of {self.run.folder})",
                    "make the ensemble again without this member",
                )
            return RunFolderError(
                f"{where}: cannot be predicted: {damaged} (checkpoint {self._checkpoint!r} of {self.run.folder})",
                f"choose another checkpoint (`ziggurat checkpoint list {self.run.folder}`)",
            )
        largest = largest_input(parts[0], batch)
        return DataError(
            f"{where}: cannot be predicted: the model computes no finite number from it{largest}",
            "correct extreme values; to train a model that bears them, add a `clip` or `log` transform",
        )


def predict(run: Run | Ensemble | str | Path, rows: Table, checkpoint: str = "best") -> npt.NDArray[np.float32]:
    """Returns the predictions (B, T) for rows in memory: a pyarrow Table, a polars DataFrame or a mapping of columns.

    Each call loads the run; use a :class:`Predictor` for many calls.
    """
    with Predictor(run, checkpoint) as predictor:
        return predictor.predict(rows)

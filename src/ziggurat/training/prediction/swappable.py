"""A predictor whose model is replaced while others predict, as a server does when a new checkpoint is ready."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from ziggurat.core.errors import PredictorClosed
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.rows_in_memory import Table
from ziggurat.training.ensemble.ensemble import Ensemble
from ziggurat.training.prediction.predictor import Predictor, ScoredBlock
from ziggurat.training.process_group import refuse_fork
from ziggurat.training.run_folder.run import Run

T = TypeVar("T")


class SwappablePredictor:
    """A :class:`~ziggurat.training.prediction.predictor.Predictor` that can be swapped while threads predict with it.

    No prediction fails by a swap: those that go on end with the model that they began with, later ones use the new one.
    During a swap both models are in memory.

    Args:
        run: the run or the ensemble, or its folder.
        checkpoint: ``best``, ``last`` or a step of a run; an ensemble has its own.

    Raises:
        ZigguratError: as for a predictor.
    """

    def __init__(self, run: Run | Ensemble | str | Path, checkpoint: str = "best") -> None:
        self._current = Predictor(run, checkpoint)
        self._swapping, self._process = threading.Lock(), os.getpid()

    def __enter__(self) -> SwappablePredictor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def current(self) -> Predictor:
        """The predictor that is used now; another thread may swap and close it at any time."""
        return self._current

    def swap(self, run: Run | Ensemble | str | Path, checkpoint: str = "best") -> None:
        """Replaces the model by another, and waits until the previous one is not used any more.

        If the new one cannot be opened, the previous one remains.

        Raises:
            ZigguratError: as for a predictor.
            PredictorClosed: this predictor is closed.
        """
        refuse_fork()
        with self._swapping:
            previous = self._current
            if previous.closed:
                raise PredictorClosed(f"{previous.run.folder}: this predictor is closed", "open a new one")
            self._current = Predictor(run, checkpoint)
            previous.close()

    def close(self) -> None:
        """Waits for the predictions that are being made, and releases the model; see :meth:`Predictor.close`."""
        if os.getpid() == self._process:  # in a fork, the lock may stay locked forever
            with self._swapping:
                self._current.close()

    def predict(self, rows: Table) -> npt.NDArray[np.float32]:
        """Returns the probabilities (B, T) of rows in memory, all of one model.

        Raises:
            ZigguratError: as for a predictor.
        """
        return self._use(lambda predictor: predictor.predict(rows))

    def score(self, block: RawBlock) -> ScoredBlock:
        """Returns the probabilities of the rows of a block that can be encoded, and the other rows.

        Raises:
            ZigguratError: as for a predictor.
        """
        return self._use(lambda predictor: predictor.score(block))

    def _use(self, work: Callable[[Predictor], T]) -> T:
        while True:
            predictor = self._current
            try:
                return work(predictor)
            except PredictorClosed:
                if predictor is self._current:  # closed, and not by a swap
                    raise

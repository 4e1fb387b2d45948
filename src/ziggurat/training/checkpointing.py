"""Saves and restores everything that decides the next step, and keeps the mark of the best checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator

import torch

from ziggurat.checkpoint.saver import Saver
from ziggurat.checkpoint.store.claim import Claim
from ziggurat.checkpoint.writer import Best, WrittenCheckpoint
from ziggurat.core.engine import library_versions
from ziggurat.optim.schedule import Schedule
from ziggurat.parallel.world import World
from ziggurat.training.averaged import AveragedWeights
from ziggurat.training.recommender import Recommender
from ziggurat.training.recommender_state import dense_state, resume, table_shapes
from ziggurat.training.run import Run
from ziggurat.training.train_state import TrainState


class Checkpointing:
    """Saves checkpoints of one training, and restores the one that it goes on from.

    Args:
        run: whose checkpoints they are.
        recommender: the weights and the states of the row optimizers.
        optimizer: of the dense part.
        average: the moving average of the weights, if there is one.
        schedule: of the learning rates.
        claim: the right to write the run's checkpoints; of the first rank.
    """

    def __init__(
        self,
        run: Run,
        recommender: Recommender,
        optimizer: torch.optim.Optimizer,
        average: AveragedWeights | None,
        schedule: Schedule,
        claim: Claim | None,
    ) -> None:
        self._run, self._recommender, self._optimizer = run, recommender, optimizer
        self._average, self._schedule, self._claim = average, schedule, claim
        self._leads = World.current().leads
        self._restores = 0
        self._saved_step, self._saved_exactly = -1, True

    @contextlib.contextmanager
    def open(self) -> Generator[None]:
        """Keeps the thread that writes checkpoints; :meth:`save` needs it."""
        saver = Saver(
            self._run.checkpoints,
            self._run.experiment.checkpoints,
            self._recommender.lookup.shards(),
            table_shapes(self._recommender),
            versions=library_versions(),
            plan=self._run.plan,
            values=self._run.experiment.model_dump(mode="json"),
            restores=self._restores,
            timeout_s=self._run.experiment.parallel.timeout_s,
            check=self._claim.check if self._claim is not None else lambda: None,
        )
        with saver as self._saver:
            yield

    def save(self, at: TrainState, best: Best | None = None, *, exact: bool = False) -> None:
        """Starts a checkpoint of the training as it is now; a thread writes it while training goes on.

        Args:
            at: where training is.
            best: what makes it the best checkpoint so far, if it is.
            exact: whether rows are written in full precision, whatever ``checkpoints.bits`` says.
        """
        state = {
            "progression": at.to_json(),
            "schedule": self._schedule.state_dict(),
            "restores": self._restores,
            "stopped": exact,
        }
        started = time.perf_counter()
        self.wait_for_snapshot()
        dense = dense_state(self._recommender, self._optimizer, self._average)
        self._saver.save(at.step, dense, state, best=best, exact=exact, since=started)
        self._saved_step, self._saved_exactly = at.step, exact or self._saver.exact

    def is_saved(self, step: int) -> bool:
        """Whether the last checkpoint is of this step, in full precision."""
        return self._saved_step == step and self._saved_exactly

    def wait_for_snapshot(self) -> None:
        """Waits until no checkpoint is copying rows, where averaged weights are about to replace all of them.

        They do so without marking rows as dirty, so a checkpoint would copy averages in place of weights.
        """
        if self._average is not None:
            self._saver.wait()

    def finish(self) -> None:
        """Waits until the last checkpoint is complete."""
        self._saver.finish()

    def take_written(self) -> list[WrittenCheckpoint]:
        """Returns the checkpoints that are complete since the last call."""
        written = list(self._saver.written)
        self._saver.written.clear()
        return written

    def take_troubles(self) -> list[str]:
        """Returns what went wrong since the last call without stopping the training."""
        troubles = list(self._saver.cleanup_errors)
        self._saver.cleanup_errors.clear()
        return troubles

    def restore(self, step: int) -> TrainState:
        """Restores a checkpoint of the run, and returns where training was then."""
        checkpoint = self._run.checkpoints.load(step)
        resume(self._recommender, checkpoint, self._optimizer, self._average)
        self._schedule.load_state_dict(checkpoint.state["schedule"])
        self._restores = int(checkpoint.state.get("restores", 0)) + (not checkpoint.state.get("stopped", False))
        at = TrainState.from_json(checkpoint.state["progression"])
        self._mark_best(at)
        if at.stopped_early and self._run.experiment.training.early_stopping is None:
            at.stopped_early = False
        self._saved_step, self._saved_exactly = at.step, True
        return at

    def _mark_best(self, at: TrainState) -> None:
        """Brings the mark of the best checkpoint in line with the restored state."""
        folder, monitor = self._run.checkpoints, self._run.experiment.training.monitor
        best = folder.best() if self._leads else {"step": at.step}
        if best is not None and self._leads and best["step"] not in folder.steps():
            # Somebody went back to an older checkpoint, and deleted the best one, or what came before it.
            if at.best is not None and at.best_step in folder.steps():
                folder.mark_best(at.best_step, monitor, at.best)
            else:
                folder.forget_best()
        if at.best is not None and at.best_step == at.step and (best or {}).get("step") != at.step:
            # Killed after the best checkpoint was saved and before it was marked.
            folder.mark_best(at.step, monitor, at.best)

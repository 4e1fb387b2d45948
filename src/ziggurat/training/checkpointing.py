"""Saves and restores everything that decides the next step, and marks the best checkpoint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ziggurat.checkpoint.reader import folder_of
from ziggurat.checkpoint.saver import Saver
from ziggurat.checkpoint.snapshots import SNAPSHOT
from ziggurat.checkpoint.store.claim import Claim
from ziggurat.checkpoint.writer import Best, WrittenCheckpoint
from ziggurat.core.engine import library_versions
from ziggurat.core.errors import RunFolderError
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import Damage
from ziggurat.optim.schedule import Schedule
from ziggurat.parallel.world import World
from ziggurat.training.averaged import AveragedWeights
from ziggurat.training.recommender import Recommender
from ziggurat.training.recommender_state import dense_state, resume, table_shapes
from ziggurat.training.run_folder.run import Run
from ziggurat.training.train_state import TrainState


@dataclass(frozen=True, slots=True)
class _SavedState:
    """The state that :meth:`Checkpointing.save` stores in a checkpoint."""

    progression: dict[str, Any]
    schedule: dict[str, int | float | None]
    restores: int = 0
    stopped: bool = False
    records: dict[str, int] | None = None


class Checkpointing:
    """Saves checkpoints of one training, and restores the checkpoint that it resumes from.

    Args:
        run: the run, with its folder of checkpoints.
        recommender: the recommender, with the states of its row optimizers.
        optimizer: the optimizer of the dense part.
        average: the moving average of the weights, if there is one.
        schedule: the schedule of the learning rates.
        claim: the right to write the run's checkpoints; on the first rank only.

    Attributes:
        records: how many records of each split ``metrics.jsonl`` had at the restored checkpoint; None if unknown.
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
        self.records: Mapping[str, int] | None = None
        self._saved_step, self._saved_exactly = -1, True

    @contextlib.contextmanager
    def open(self, records: Mapping[str, int]) -> Generator[None]:
        """Runs the thread that writes checkpoints within the context; :meth:`save` needs it.

        Args:
            records: how many records of each split ``metrics.jsonl`` has, which every checkpoint stores; it may change.
        """
        self.records = records
        folder = self._run.checkpoints
        if self._leads:
            owner = self._run.owner
            folder = folder.of_run(owner.id)
            folder.check_owner(owner)
        saver = Saver(
            folder,
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
        """Starts a checkpoint of the present state; a thread writes it while training continues.

        Args:
            at: the state of the training.
            best: the metric and its value if this is the best checkpoint so far.
            exact: whether rows are written in full precision regardless of ``checkpoints.bits``.
        """
        state = {
            "progression": at.to_json(),
            "schedule": self._schedule.state_dict(),
            "restores": self._restores,
            "stopped": exact,
            "records": dict(self.records or {}),
            SNAPSHOT: self._schedule.ends_cycle(at.step),
        }
        started = time.perf_counter()
        self.wait_for_snapshot()
        dense = dense_state(self._recommender, self._optimizer, self._average)
        self._saver.save(at.step, dense, state, best=best, exact=exact, since=started)
        self._saved_step, self._saved_exactly = at.step, exact or self._saver.exact

    def is_saved(self, step: int) -> bool:
        """Returns whether the last checkpoint is of this step, in full precision."""
        return self._saved_step == step and self._saved_exactly

    def wait_for_snapshot(self) -> None:
        """Waits until no checkpoint is copying rows, if averaged weights are used.

        Averaged weights replace all rows without marking them as dirty, so a checkpoint would copy averages in place of
        weights.
        """
        if self._average is not None:
            self._saver.wait()

    def finish(self) -> None:
        """Waits until the last checkpoint is complete."""
        self._saver.finish()

    def take_written(self) -> list[WrittenCheckpoint]:
        """Returns the checkpoints that were completed since the last call."""
        written = list(self._saver.written)
        self._saver.written.clear()
        return written

    def take_problems(self) -> list[str]:
        """Returns messages about problems since the last call that did not stop the training."""
        problems = list(self._saver.cleanup_errors)
        self._saver.cleanup_errors.clear()
        return problems

    def restore(self, step: int) -> TrainState:
        """Restores a checkpoint of the run and returns the state of the training at that step.

        Raises:
            RunFolderError: the checkpoint is damaged, or of another model or training.
        """
        checkpoint = self._run.checkpoints.load(step)
        where = f"{self._run.checkpoints.store.where(folder_of(step))}: state"
        damage = Damage(RunFolderError, "delete the checkpoint's folder to resume from the one before")
        saved = declared(_SavedState, checkpoint.state, where, damage)
        at = TrainState.from_json(saved.progression, f"{where}.progression", damage)
        resume(self._recommender, checkpoint, self._optimizer, self._average)
        self._schedule.load_state_dict(saved.schedule)
        self._restores = saved.restores + (not saved.stopped)
        self.records = saved.records
        self._mark_best(at)
        if at.stopped_early and self._run.experiment.training.early_stopping is None:
            at.stopped_early = False
        self._saved_step, self._saved_exactly = at.step, True
        return at

    def _mark_best(self, at: TrainState) -> None:
        """Makes the mark of the best checkpoint agree with the restored state."""
        folder, monitor = self._run.checkpoints, self._run.experiment.training.monitor
        best = folder.best() if self._leads else {"step": at.step}
        if best is not None and self._leads and best["step"] not in folder.steps():
            # The user deleted the best checkpoint, or one that it needs, to resume from an older one.
            if at.best is not None and at.best_step in folder.steps():
                folder.mark_best(at.best_step, monitor, at.best)
            else:
                folder.forget_best()
        if at.best is not None and at.best_step == at.step and (best or {}).get("step") != at.step:
            # The process was killed after the best checkpoint was saved and before it was marked.
            folder.mark_best(at.step, monitor, at.best)

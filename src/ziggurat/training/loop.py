"""The training loop, in data order: read, look up, interact, loss, step, evaluate, save.

Everything that decides the next step is in a snapshot (weights, row and dense optimizer states, schedule, cursor, early
stopping, random state), so training N steps, stopping and going on for N equals training 2 N, bit for bit.

Shape legend: B rows, F features, D embedding width, T tasks.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Generator, Iterator, Sequence

import torch

from ziggurat.checkpoint.reader import CheckpointReader
from ziggurat.checkpoint.saver import Saver
from ziggurat.checkpoint.store.claim import Claim
from ziggurat.checkpoint.writer import Best
from ziggurat.core.batch import Batch
from ziggurat.core.engine import library_versions
from ziggurat.core.errors import DivergedError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.metrics.names import higher_is_better
from ziggurat.optim.schedule import Warmup, build_schedule
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.shared_memory import shared_slots
from ziggurat.parallel.world import World
from ziggurat.training.averaged import NORM_BATCHES, AveragedWeights
from ziggurat.training.batch_source import fed
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.loss import LossWindow
from ziggurat.training.metrics_log import MetricsLog, NoMetricsLog, journal_of
from ziggurat.training.recommender import Recommender
from ziggurat.training.recommender_state import dense_state, resume, table_shapes
from ziggurat.training.run import Run
from ziggurat.training.signals import StopRequest
from ziggurat.training.step import Stepper, StepWork, prefetched_batches
from ziggurat.training.train_state import TrainState, monitored
from ziggurat.training.warm_start.load import warm_start


class Trainer:
    """Trains one run from where its last checkpoint left it.

    Args:
        run: the run folder, with its experiment.
        dataset: the prepared dataset.
        recommender: freshly assembled, on ``device``; the last checkpoint, if any, is restored into it.
        device: to train on.
        progress: where to show it.
        claim: the right to write the run's checkpoints; of the first rank.
    """

    def __init__(
        self,
        run: Run,
        dataset: Dataset,
        recommender: Recommender,
        device: torch.device,
        progress: Progress,
        claim: Claim | None = None,
    ) -> None:
        self.run, self.dataset, self.recommender, self.device = run, dataset, recommender, device
        self._claim = claim
        self.progress, self.world = progress, World.current()
        config = run.experiment.training
        self.config = config
        prefetch = (2 if device.type == "cuda" else 0) if config.prefetch is None else config.prefetch
        local = Loader(
            dataset.split("train"),
            dataset.schema,
            config.batch_size,
            shuffle=True,
            seed=config.seed,
            prefetch=prefetch,
            rank=self.world.rank,
            world_size=self.world.size,
        )
        self.loader = fed(local, dataset, config, progress)
        self.total_steps = min(config.epochs * self.loader.steps_per_epoch, config.max_steps or 2**62)
        self.optimizer = run.experiment.optimizer.build(recommender.dense_parameters())
        last = on_first_rank(run.checkpoints.last)
        if last is None:
            warm_start(run, recommender, self.optimizer, progress)
        slots = shared_slots(run.experiment.parallel, self.world, device)
        self._step = Stepper(recommender, self.optimizer, run.experiment.embeddings.l2, config.clip_norm, slots)
        decay = config.weight_average
        self.average = AveragedWeights(recommender, decay, self._norm_batches) if decay is not None else None
        self._base_lr = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.schedule = build_schedule(config.schedule, self.total_steps)
        self._multiplier: float | None = None
        self.at = TrainState()
        self._stopping = False
        self._restores = 0
        if last is not None:
            self._restore(run.checkpoints.load(last))
        self._saved = (self.at.step if last is not None else -1, True)
        self._window = LossWindow.on(self.device)
        self._shown: dict[str, float | str] = {}
        self._moved: tuple[dict[str, float], int] = ({}, self.at.step)

    @property
    def finished(self) -> bool:
        return self.at.step >= self.total_steps or self.at.stopped_early or self.at.cursor.epoch >= self.config.epochs

    def train(self, stop_after: int | None = None) -> StopRequest:
        """Train until the end, until a signal, or until ``stop_after`` steps are done in all; then save.

        Returns:
            The stop request, whose ``signal`` says what ended training early, if anything.
        """
        self.recommender.train()
        if isinstance(self.schedule, Warmup) and self.schedule.warmup_steps > self.total_steps:
            self.progress.note(
                f"training.schedule: the warm-up of {self.schedule.warmup_steps:,} steps is longer than the "
                f"{self.total_steps:,} of this run: the learning rates never reach their full value"
            )
        self.progress.start("train", self.total_steps * self._step_rows(), "rows")
        with (
            StopRequest() as stop,
            journal_of(self.run.folder, self.at.step, self.world.leads) as journal,
            self._savers() as self._saver,
        ):
            while not self.finished and not self._ends(stop_after):
                with contextlib.closing(self._works()) as epoch:
                    coming: Sequence[StepWork] = ()
                    for work, coming in epoch:
                        self._apply_schedule()
                        due = self._due(work.cursor)
                        done = self._step(work, next(iter(coming), None), stop.signal is not None, due)
                        self._window.add(done.loss, done.weight, work.batch)
                        self._stopping = done.stopping
                        self.at.step, self.at.cursor = self.at.step + 1, work.cursor
                        self._after_step(journal)
                        if self.finished or (due and self._ends(stop_after)):
                            break
                    for each in coming:
                        if each.started is not None:
                            self.recommender.lookup.drop(each.started)
            step, exactly = self._saved
            if step != self.at.step or not exactly:
                self._log(journal)
                self._save(exact=True)
            self._saver.finish()
            self._tell_written(journal)
        patience = self.config.early_stopping.patience if self.config.early_stopping else 0
        early = f"no better val_{self.config.monitor} in {patience} evaluations, stopped early"
        self.progress.finish(early if self.at.stopped_early else "")
        return stop

    def _due(self, cursor: Cursor) -> bool:
        """Whether the dense optimizer makes its step behind the batch that leads to ``cursor``."""
        step = self.at.step + 1
        return step % self.config.accumulate == 0 or cursor.rows == 0 or step >= self.total_steps

    def _ends(self, stop_after: int | None) -> bool:
        return self._stopping or (stop_after is not None and self.at.step >= stop_after)

    def _works(self) -> Generator[tuple[StepWork, Sequence[StepWork]]]:
        pipelined = self.world.size > 1 and self.run.experiment.parallel.pipeline
        return prefetched_batches(self.loader.epoch(self.at.cursor), self.recommender.lookup, self.device, pipelined)

    def _apply_schedule(self) -> None:
        multiplier = self.schedule.multiplier(self.at.step)
        if multiplier != self._multiplier:
            for group, base in zip(self.optimizer.param_groups, self._base_lr, strict=True):
                group["lr"] = base * multiplier
            self.recommender.lookup.scale_learning_rates(multiplier)
            self._multiplier = multiplier

    def _after_step(self, journal: MetricsLog | NoMetricsLog) -> None:
        config, step = self.config, self.at.step
        if self.average is not None:
            self.average.update(step)
        epoch_ended = self.at.cursor.rows == 0
        evaluate = step % config.evaluate_every == 0 if config.evaluate_every else epoch_ended
        evaluate = evaluate or step >= self.total_steps
        save = config.save_every is not None and step % config.save_every == 0
        if step % config.log_every == 0 or evaluate or save:
            self._log(journal)  # refuses to go on, and so to save, once the loss is no number
        if evaluate:
            self._evaluate(journal)
        elif save:
            self._save()

    def _log(self, journal: MetricsLog | NoMetricsLog) -> None:
        window, self._window = self._window, LossWindow.on(self.device)
        window.over_ranks()
        figures = window.figures()
        if not figures:
            return
        if not math.isfinite(figures["loss"]):
            raise DivergedError(
                f"the training loss became {figures['loss']} by step {self.at.step}",
                "lower optimizer.lr and embeddings.optimizer.lr, set training.clip_norm, or look for extreme values in "
                "numeric features (`ziggurat report`); the last checkpoint is intact",
            )
        self._tell_written(journal)
        figures["lr_multiplier"] = self.schedule.multiplier(self.at.step - 1)
        journal.write("train", self.at.step, self._epoch(), figures)
        self._tell_moved(journal)
        self._shown.update(loss=figures["loss"], ne=figures["ne"])
        self.progress.advance(self.at.step * self._step_rows(), **self._shown)

    def _tell_moved(self, journal: MetricsLog | NoMetricsLog) -> None:
        """Of rows beyond memory, what was moved for this rank a step since it was told last."""
        moved, (before, step) = self.recommender.lookup.transferred(), self._moved
        self._moved = (moved, self.at.step)
        if moved and self.at.step > step:
            a_step = {name: (value - before.get(name, 0.0)) / (self.at.step - step) for name, value in moved.items()}
            rate = a_step["hits"] / max(1.0, a_step["lookups"])
            journal.write("beyond_memory", self.at.step, self._epoch(), {"hit_rate": rate, **a_step})
            self._shown["hit_rate"] = rate

    def _evaluate(self, journal: MetricsLog | NoMetricsLog) -> None:
        blocks = self.dataset.split("validation")
        if not blocks.rows:
            self._save()
            return
        size = self.run.experiment.evaluation.batch_size
        self._wait_for_snapshot()
        with self.average.in_use() if self.average is not None else contextlib.nullcontext():
            metrics = evaluate_split(self.recommender, blocks, self.dataset.schema, self.device, size)
        figures = metrics.compute()
        journal.write("validation", self.at.step, self._epoch(), figures)
        value = monitored(figures, self.config.monitor, metrics.tasks)
        improved = self.at.observe(value, self.config.monitor, self.config.early_stopping)
        self.schedule.observe(value if not higher_is_better(self.config.monitor) else -value)
        self._save(Best(self.config.monitor, value) if improved else None)
        shown = ("ne", "auc", self.config.monitor)
        for name in dict.fromkeys(shown if self.config.monitor != "log_loss" else shown[:2]):  # NE is log-loss, scaled
            self._shown[f"val_{name}"] = monitored(figures, name, metrics.tasks)
        self._window.started = time.perf_counter()
        self.progress.advance(self.at.step * self._step_rows(), **self._shown)

    def _savers(self) -> Saver:
        return Saver(
            self.run.checkpoints,
            self.run.experiment.checkpoints,
            self.recommender.lookup.shards(),
            table_shapes(self.recommender),
            versions=library_versions(),
            plan=self.run.plan,
            values=self.run.experiment.model_dump(mode="json"),
            restores=self._restores,
            timeout_s=self.run.experiment.parallel.timeout_s,
            check=self._claim.check if self._claim is not None else lambda: None,
        )

    def _save(self, best: Best | None = None, *, exact: bool = False) -> None:
        state = {
            "progression": self.at.to_json(),
            "schedule": self.schedule.state_dict(),
            "restores": self._restores,
            "stopped": exact,
        }
        started = time.perf_counter()
        self._wait_for_snapshot()
        dense = dense_state(self.recommender, self.optimizer, self.average)
        self._saver.save(self.at.step, dense, state, best=best, exact=exact, since=started)
        self._saved = (self.at.step, exact or self._saver.exact)

    def _wait_for_snapshot(self) -> None:
        """The average takes the place of every row, unmarked: no checkpoint must be copying them then."""
        if self.average is not None:
            self._saver.wait()

    def _tell_written(self, journal: MetricsLog | NoMetricsLog) -> None:
        for written in self._saver.written:
            journal.write("checkpoint", written.step, self._epoch(), written.figures())
        self._saver.written.clear()
        for message in self._saver.cleanup_errors:
            self.progress.note(message)
        self._saver.cleanup_errors.clear()

    def _restore(self, saved: CheckpointReader) -> None:
        resume(self.recommender, saved, self.optimizer, self.average)
        self.at = TrainState.from_json(saved.state["progression"])
        self.schedule.load_state_dict(saved.state["schedule"])
        self._restores = int(saved.state.get("restores", 0)) + (not saved.state.get("stopped", False))
        folder = self.run.checkpoints
        best = folder.best() if self.world.leads else {"step": self.at.step}
        if best is not None and self.world.leads and best["step"] not in folder.steps():
            # Somebody went back to an older checkpoint, and deleted the best one, or what came before it.
            if self.at.best is not None and self.at.best_step in folder.steps():
                folder.mark_best(self.at.best_step, self.config.monitor, self.at.best)
            else:
                folder.forget_best()
        if self.at.best is not None and self.at.best_step == self.at.step and (best or {}).get("step") != self.at.step:
            # Killed after the best checkpoint was saved and before it was marked.
            self.run.checkpoints.mark_best(self.at.step, self.config.monitor, self.at.best)
        if self.at.stopped_early and self.config.early_stopping is None:
            self.at.stopped_early = False

    def _norm_batches(self) -> Iterator[Batch]:
        """The first training batches of the first epoch."""
        for batch, _ in itertools.islice(self.loader.epoch(Cursor()), NORM_BATCHES):
            yield batch.to(self.device)

    def _epoch(self) -> float:
        return self.at.cursor.epoch + self.at.cursor.rows / max(1, self.loader.rows)

    def _step_rows(self) -> float:
        return self.loader.rows / self.loader.steps_per_epoch

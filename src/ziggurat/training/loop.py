"""The training loop, in data order: read, look up, interact, loss, step, evaluate, save.

Everything that decides the next step is in a snapshot (weights, row and dense optimizer states, schedule, cursor, early
stopping, random state), so training N steps, stopping and resuming for N more equals training 2 N, bit for bit.

Shape legend: B rows, F features, D embedding width, T tasks.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Generator, Iterator, Sequence

import torch

from ziggurat.checkpoint.store.claim import Claim
from ziggurat.checkpoint.writer import Best
from ziggurat.core.batch import Batch
from ziggurat.core.errors import DivergedError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.down_sampling import down_sampled
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.metrics.names import higher_is_better
from ziggurat.optim.schedule import CyclicCosine, Warmup, build_schedule
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.shared_memory import shared_slots
from ziggurat.parallel.world import World
from ziggurat.training.averaged import NORM_BATCHES, AveragedWeights
from ziggurat.training.batch_source import training_loader
from ziggurat.training.checkpointing import Checkpointing
from ziggurat.training.in_batch_negatives import rows_read, with_negatives
from ziggurat.training.loss import LossWindow
from ziggurat.training.placement.counted_lookups import planned_statistics
from ziggurat.training.placement.step_examples import StepExamples
from ziggurat.training.placement.tier_watch import TierWatch
from ziggurat.training.recommender import Recommender
from ziggurat.training.run_folder.metrics_log import MetricsLog, NoMetricsLog, open_metrics_log, resume_note
from ziggurat.training.run_folder.run import Run
from ziggurat.training.signals import StopRequest
from ziggurat.training.step import Stepper, StepWork, prefetched_batches
from ziggurat.training.train_state import TrainState
from ziggurat.training.validation import Validation
from ziggurat.training.warm_start.load import warm_start


class Trainer:
    """Trains one run from where its last checkpoint left it.

    Args:
        run: the run folder, with its experiment.
        dataset: the prepared dataset.
        recommender: freshly assembled, on ``device``; the last checkpoint, if any, is restored into it.
        device: the device to train on.
        progress: where to show progress.
        claim: the right to write the run's checkpoints; on the first rank only.
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
        self.progress, self.world = progress, World.current()
        config = run.experiment.training
        self.config = config
        prefetch = (2 if device.type == "cuda" else 0) if config.prefetch is None else config.prefetch
        local = Loader(
            dataset.split("train"),
            dataset.schema,
            rows_read(config.batch_size, run.experiment.data.negatives, self.world.size),
            shuffle=True,
            seed=config.seed,
            prefetch=prefetch,
            rank=self.world.rank,
            world_size=self.world.size,
        )
        self.loader = with_negatives(training_loader(local, dataset, config, progress), run.experiment, dataset)
        self._local = local
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
        self._stopping = False
        self._checkpoints = Checkpointing(run, recommender, self.optimizer, self.average, self.schedule, claim)
        self.at = TrainState() if last is None else self._checkpoints.restore(last)
        self._validation = Validation(run.experiment, dataset, recommender, device, self.average)
        self._rates = all(task.is_probability for task in recommender.outputs.tasks) and not dataset.schema.counted
        self._window = self._new_window()
        self._shown: dict[str, float | str] = {}
        self._transferred: tuple[dict[str, float], int] = ({}, self.at.step)
        tiered, self._watch = recommender.lookup.tiered, None
        if tiered is not None:
            statistics = planned_statistics(dataset.statistics(), run.files)
            examples = StepExamples.of(run.experiment, statistics, self.world.size)
            self._watch = TierWatch(tiered.tables, statistics, examples.read, self.world)
        self._tier_totals: tuple[dict[str, float], int] = ({}, self.at.step)

    @property
    def finished(self) -> bool:
        return self.at.step >= self.total_steps or self.at.stopped_early or self.at.cursor.epoch >= self.config.epochs

    def log_note(self) -> str | None:
        """Returns what ``metrics.jsonl`` lacks, or has twice, up to the restored checkpoint; None if nothing.

        Raises:
            RunFolderError: a line of it is damaged.
        """
        return resume_note(self.run.metrics_path, self.run.files, self.at.step, self._checkpoints.records)

    def train(self, stop_after: int | None = None) -> StopRequest:
        """Trains until the end, until a signal, or until ``stop_after`` steps are done in total; then saves.

        Returns:
            The stop request; its ``signal`` is the signal that ended training early, if any.
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
            open_metrics_log(self.run.folder, self.at.step, self.world.leads) as log,
            self._checkpoints.open(log.counts),
        ):
            while not self.finished and not self._ends(stop_after):
                with contextlib.closing(self._prefetched()) as epoch:
                    coming: Sequence[StepWork] = ()
                    for work, coming in epoch:
                        self._apply_schedule()
                        due = self._due(work.cursor)
                        done = self._step(work, next(iter(coming), None), stop.signal is not None, due)
                        self._window.add(done.loss, done.weight, work.batch)
                        self._stopping = done.stopping
                        self.at.step, self.at.cursor = self.at.step + 1, work.cursor
                        self._after_step(log)
                        if self.finished or (due and self._ends(stop_after)):
                            break
                    for each in coming:
                        if each.started is not None:
                            self.recommender.lookup.drop(each.started)
            if not self._checkpoints.is_saved(self.at.step):
                self._log(log)
                self._checkpoints.save(self.at, exact=True)
            self._checkpoints.finish()
            self._report_written(log)
        patience = self.config.early_stopping.patience if self.config.early_stopping else 0
        of = "cycles" if isinstance(self.schedule, CyclicCosine) else "evaluations"
        early = f"no better val_{self.config.monitor} in {patience} {of}, stopped early"
        self.progress.finish(early if self.at.stopped_early else "")
        return stop

    def _new_window(self) -> LossWindow:
        return LossWindow.on(self.device, self._rates)

    def _due(self, cursor: Cursor) -> bool:
        """Returns whether the dense optimizer makes its step after the batch that leads to ``cursor``."""
        step = self.at.step + 1
        whole = step % self.config.accumulate == 0 or cursor.rows == 0
        return whole or step >= self.total_steps or self.schedule.ends_cycle(step)

    def _ends(self, stop_after: int | None) -> bool:
        return self._stopping or (stop_after is not None and self.at.step >= stop_after)

    def _prefetched(self) -> Generator[tuple[StepWork, Sequence[StepWork]]]:
        pipelined = self.world.size > 1 and self.run.experiment.parallel.pipeline
        return prefetched_batches(self._batches(self.at.cursor), self.recommender.lookup, self.device, pipelined)

    def _batches(self, start: Cursor) -> Iterator[tuple[Batch, Cursor]]:
        batches, config = self.loader.epoch(start), self.config
        if config.negative_rate is None:
            return batches
        return down_sampled(batches, self._local.steps(start), config.negative_rate, config.seed, start.epoch)

    def _apply_schedule(self) -> None:
        multiplier = self.schedule.multiplier(self.at.step)
        if multiplier != self._multiplier:
            for group, base in zip(self.optimizer.param_groups, self._base_lr, strict=True):
                group["lr"] = base * multiplier
            self.recommender.lookup.scale_learning_rates(multiplier)
            self._multiplier = multiplier

    def _after_step(self, log: MetricsLog | NoMetricsLog) -> None:
        config, step = self.config, self.at.step
        if self.average is not None:
            self.average.update(step)
        epoch_ended = self.at.cursor.rows == 0
        evaluate = step % config.evaluate_every == 0 if config.evaluate_every else epoch_ended
        evaluate = evaluate or step >= self.total_steps or self.schedule.ends_cycle(step)
        save = config.save_every is not None and step % config.save_every == 0
        if step % config.log_every == 0 or evaluate or save:
            self._log(log)  # raises before anything is saved: the loss is not finite, or an id outside its table
        if evaluate:
            self._evaluate(log)
        elif save:
            self._checkpoints.save(self.at)

    def _log(self, log: MetricsLog | NoMetricsLog) -> None:
        self.recommender.lookup.check_ids()
        window, self._window = self._window, self._new_window()
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
        self._report_written(log)
        figures["lr_multiplier"] = self.schedule.multiplier(self.at.step - 1)
        log.write("train", self.at.step, self._epoch(), figures)
        self._log_transfers(log)
        self._log_tiers(log)
        self._shown.update({name: figures[name] for name in ("loss", "ne") if name in figures})
        self.progress.advance(self.at.step * self._step_rows(), **self._shown)

    def _log_transfers(self, log: MetricsLog | NoMetricsLog) -> None:
        """Logs the transfers of offloaded rows on this rank, per step since the last call."""
        total, (before, step) = self.recommender.lookup.transferred(), self._transferred
        self._transferred = (total, self.at.step)
        if total and self.at.step > step:
            per_step = {name: (value - before.get(name, 0.0)) / (self.at.step - step) for name, value in total.items()}
            rate = per_step["hits"] / max(1.0, per_step["lookups"])
            log.write("beyond_memory", self.at.step, self._epoch(), {"hit_rate": rate, **per_step})
            self._shown["hit_rate"] = rate

    def _log_tiers(self, log: MetricsLog | NoMetricsLog) -> None:
        """Logs this rank's look-ups and traffic of tables whose rows are in tiers, per step since the last call."""
        tiered, (before, step) = self.recommender.lookup.tiered, self._tier_totals
        if tiered is None or self._watch is None or self.at.step <= step:
            return
        total = tiered.traffic.totals()
        self._tier_totals = (total, self.at.step)
        figures = self._watch.figures(before, total, self.at.step - step)
        log.write("row_tiers", self.at.step, self._epoch(), figures)
        for note in self._watch.notes(figures):
            self.progress.note(note)

    def _evaluate(self, log: MetricsLog | NoMetricsLog) -> None:
        if not self._validation.rows:
            self._checkpoints.save(self.at)
            return
        self._checkpoints.wait_for_snapshot()
        figures, value = self._validation.run()
        monitor = self.config.monitor
        log.write("validation", self.at.step, self._epoch(), figures)
        counts = self.schedule.is_low(self.at.step)
        improved = self.at.observe(value, monitor, self.config.early_stopping, counts=counts)
        self.schedule.observe(-value if higher_is_better(monitor) else value)
        self._checkpoints.save(self.at, Best(monitor, value) if improved else None)
        self._shown |= self._validation.shown(figures)
        self._window.started = time.perf_counter()
        self.progress.advance(self.at.step * self._step_rows(), **self._shown)

    def _report_written(self, log: MetricsLog | NoMetricsLog) -> None:
        """Logs the checkpoints that were completed since the last call, and reports failures of others."""
        for written in self._checkpoints.take_written():
            log.write("checkpoint", written.step, self._epoch(), written.figures())
        for problem in self._checkpoints.take_problems():
            self.progress.note(problem)

    def _norm_batches(self) -> Iterator[Batch]:
        """Yields the first training batches of the first epoch."""
        for batch, _ in itertools.islice(self._batches(Cursor()), NORM_BATCHES):
            yield batch.to(self.device)

    def _epoch(self) -> float:
        return self.at.cursor.epoch + self.at.cursor.rows / max(1, self.loader.rows)

    def _step_rows(self) -> float:
        return self.loader.rows / self.loader.steps_per_epoch

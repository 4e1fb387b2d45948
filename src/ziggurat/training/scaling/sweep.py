"""Trains a scaling sweep: every size of an experiment's model with every seed, each in an ordinary run folder.

A run such as ``SWEEP/rung-02/seed-1`` resumes like any other run, so the sweep resumes too: finished runs are not
trained again. All runs share one prepared dataset. ``SWEEP/scale.json`` is rewritten after each run. If a run diverges,
this is recorded and the sweep continues without it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, DivergedError, ZigguratError, shorten
from ziggurat.core.files import locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.run_folder.own_folder import check_own_folder
from ziggurat.training.run_folder.run import SWEEP_FILE, Run
from ziggurat.training.scaling.model_sizes import (
    SizedExperiment,
    grown_experiments,
    listed_experiments,
    sized_experiments,
)
from ziggurat.training.scaling.result import MIN_SIZES, DivergedRun, Judged, RunResult, ScaleResult, SizeResult
from ziggurat.training.scaling.runs import finished_runs, result_of, run_folder, with_seed
from ziggurat.training.train import train


@dataclass(frozen=True, slots=True)
class Scaled:
    """How a call of :func:`scale` ended.

    Attributes:
        folder: the folder of the sweep.
        result: the results of the finished runs.
        signal: the signal that interrupted it, or None. Finished runs are kept, and the run in progress is saved.
        missing: the number of requested runs that are left to train.
    """

    folder: Path
    result: ScaleResult
    signal: signal.Signals | None
    missing: int


def scale(
    experiment: Experiment | str | Path,
    folder: str | Path | None = None,
    *,
    sizes: int = 5,
    seeds: int = 2,
    split: Judged = "test",
    sizes_file: str | Path | None = None,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Scaled:
    """Trains growing sizes of a model, or resumes such a sweep, and fits log-loss over compute.

    Args:
        experiment: the experiment with the smallest model, or its YAML file.
        folder: the folder of the sweep; default: ``runs/NAME-scale``.
        sizes: the number of sizes to grow from the model.
        seeds: the number of runs of each size; seeds count up from ``training.seed``.
        split: the split on which the law is fitted.
        sizes_file: a YAML file with the changes of each size, which replaces ``sizes``;
            :func:`~ziggurat.training.scaling.model_sizes.listed_experiments` describes it.
        prepared: the folder of the encoded dataset; default: as in :func:`~ziggurat.training.api.prepare`.
        progress: receives the progress.

    Raises:
        ConfigError: there are fewer than three sizes or no seed, the model defines no larger sizes, the sizes do not
            grow or exceed the machine's memory, or the split has no rows.
        RunFolderError: the folder holds something else, or runs of another config or dataset; it is not changed.
        DivergedError: so many runs diverged that fewer than three sizes have a finished run.
        ZigguratError: as :func:`~ziggurat.training.api.train`; the message names the size and seed.
    """
    check_engine()
    _check_arguments(None if sizes_file else sizes, seeds, split)
    experiment = as_experiment(experiment)
    experiment.check()
    numbers = [label.name for label in experiment.tasks() if not label.is_probability]
    if numbers:
        raise ConfigError(
            f"data.labels: {numbers[0]!r} is a number, and a sweep fits the log-loss of labels that are rates",
            "leave the label out, or set at_least for a binary one",
        )
    if experiment.checkpoints.store is not None:
        raise ConfigError(
            f"checkpoints.store: {experiment.checkpoints.store} can hold the checkpoints of one run, and a sweep "
            "trains several runs",
            "leave it out: each run of a sweep then keeps its checkpoints in its own folder",
        )
    progress = progress or Silent()
    folder = Path("runs") / f"{experiment.name}-scale" if folder is None else Path(folder)
    if sizes_file:
        experiments = listed_experiments(experiment, Path(sizes_file))
    else:
        experiments = grown_experiments(experiment, sizes)
    if len(experiments) < MIN_SIZES:
        raise _too_few(len(experiments))
    check_own_folder(folder, SWEEP_FILE, "scaling sweep")
    dataset = prepare(experiment, folder=prepared, progress=progress)
    if not dataset.split(split).rows:
        raise ConfigError(f"the {split} split has no rows", "choose another --split, or give data.split a share")
    sized = sized_experiments(experiments, dataset.schema)
    with locked_folder(folder, "training a scaling sweep"):
        return _Sweep(folder, sized, seeds, split, dataset, progress).run()


class _Sweep:
    """A sweep in progress: its finished runs and the runs that diverged.

    Args:
        folder: the folder of the sweep.
        sizes: the requested sizes, by growing size.
        seeds: the number of runs of each size.
        split: the split on which the law is fitted.
        dataset: the prepared data that all runs share.
        progress: receives the progress.
    """

    def __init__(
        self,
        folder: Path,
        sizes: Sequence[SizedExperiment],
        seeds: int,
        split: Judged,
        dataset: Dataset,
        progress: Progress,
    ) -> None:
        self.folder, self.sizes, self.seeds = folder, sizes, seeds
        self.split: Judged = split
        self.dataset, self.progress = dataset, progress
        first = {sized.number: sized.experiment.training.seed for sized in sizes}
        self.requested = {number: range(seed, seed + seeds) for number, seed in first.items()}
        self.runs: dict[int, dict[int, RunResult]] = {sized.number: {} for sized in sizes}
        self.diverged: dict[int, dict[int, DivergedRun]] = {sized.number: {} for sized in sizes}
        found = finished_runs(folder, sizes, dataset, self.requested, progress)
        by_number = {sized.number: sized for sized in sizes}
        for (number, _), run in found.items():
            self._keep(by_number[number], run)

    def run(self) -> Scaled:
        """Trains the missing runs: all sizes with the first seed, then all with the next.

        An early stop therefore leaves a complete, if noisy, curve.

        Raises:
            DivergedError: so many runs diverged that fewer than three sizes have a finished run.
        """
        for sized in self.sizes:
            self.progress.note(
                f"size {sized.number} of {len(self.sizes)}: {sized.size.flops:,} FLOPs per example, "
                f"{sized.size.dense_parameters:,} dense parameters"
            )
        self.result().save(self.folder)
        self.progress.start("sweep", len(self.sizes) * self.seeds, "runs")
        for index in range(self.seeds):
            for sized in self.sizes:
                stopped = self._train(sized, self.requested[sized.number][index])
                self.progress.advance(len(self.sizes) * self.seeds - self._missing())
                if stopped is not None:
                    self.progress.finish()
                    return Scaled(self.folder, self.result(), stopped, self._missing())
        self.progress.finish()
        result = self.result()
        self._check_enough(result)
        result.save(self.folder, result.fit())
        return Scaled(self.folder, result, None, 0)

    def result(self) -> ScaleResult:
        """Returns the results so far."""
        first = self.sizes[0].experiment
        found = tuple(
            SizeResult(
                sized.number,
                sized.experiment.model.model_dump(mode="json"),
                sized.size,
                tuple(run for _, run in sorted(self.runs[sized.number].items())),
                tuple(run for _, run in sorted(self.diverged[sized.number].items())),
            )
            for sized in self.sizes
        )
        fingerprint = self.dataset.fingerprint
        return ScaleResult(first.name, self.split, fingerprint, self.seeds, found, first.model_dump(mode="json"))

    def _train(self, sized: SizedExperiment, seed: int) -> signal.Signals | None:
        """Trains one run, unless its result is known, and saves the result; returns the signal that stopped it."""
        if seed in self.runs[sized.number] or seed in self.diverged[sized.number]:
            return None
        where, folder = f"size {sized.number}, seed {seed}", run_folder(self.folder, sized, seed)
        try:
            outcome = train(with_seed(sized, seed), folder, prepared=self.dataset.folder, progress=self.progress)
        except DivergedError as error:
            relative = folder.relative_to(self.folder).as_posix()
            self.diverged[sized.number][seed] = DivergedRun(seed, relative, error.problem)
            self.progress.note(f"{where}: {error.problem}; the sweep continues without this run")
            stopped = None
        except ZigguratError as error:
            raise type(error)(f"{where}: {error.problem}", error.hint) from None
        else:
            stopped = outcome.signal
            if outcome.results is not None:
                self._keep(sized, outcome.run)
                self._report(sized, seed)
        self.result().save(self.folder)
        return stopped

    def _keep(self, sized: SizedExperiment, run: Run) -> None:
        """Adds the result of a finished run."""
        rows = self.dataset.split("train").rows
        kept = result_of(run, sized, rows, self.folder, self.split)
        if isinstance(kept, DivergedRun):
            self.diverged[sized.number][kept.seed] = kept
        else:
            self.runs[sized.number][kept.seed] = kept

    def _missing(self) -> int:
        """Returns how many of the requested runs are neither finished nor known to diverge."""
        known = {number: self.runs[number].keys() | self.diverged[number].keys() for number in self.requested}
        return sum(seed not in known[number] for number, seeds in self.requested.items() for seed in seeds)

    def _report(self, sized: SizedExperiment, seed: int) -> None:
        """Reports the result of a run that has just finished."""
        run = self.runs[sized.number].get(seed)
        if run is None:
            self.progress.note(f"size {sized.number}, seed {seed}: {self.diverged[sized.number][seed].reason}")
            return
        loss = SizeResult(sized.number, {}, sized.size, (run,)).mean(self.split, "log_loss")
        self.progress.note(
            f"size {sized.number} of {len(self.sizes)}, seed {seed}: {sized.size.flops:,} FLOPs per example, "
            f"log-loss {loss:.5f} on {self.split}, {run.seconds:,.1f} s"
        )

    def _check_enough(self, result: ScaleResult) -> None:
        """Raises DivergedError if too few sizes have a finished run for a law."""
        if len(result.finished) >= MIN_SIZES:
            return
        lost = [
            f"size {entry.number}, seed {run.seed}: {run.reason}" for entry in result.sizes for run in entry.diverged
        ]
        raise DivergedError(
            f"{len(result.finished)} of {len(result.sizes)} sizes have a finished run, a law needs {MIN_SIZES}\n  "
            + "\n  ".join(lost),
            "train into another folder (--run) with a lower optimizer.lr and embeddings.optimizer.lr, or with "
            "training.clip_norm; the same command tries the diverged runs again",
        )


def _check_arguments(sizes: int | None, seeds: int, split: str) -> None:
    """Raises ConfigError for arguments that cannot give a law; ``sizes`` is None if a file lists the sizes."""
    if sizes is not None and sizes < MIN_SIZES:
        raise _too_few(sizes)
    if seeds < 1:
        raise ConfigError(f"each size is trained with one seed or more, received {seeds} seeds", "give --seeds 2")
    if split not in get_args(Judged):
        allowed = " or ".join(get_args(Judged))
        raise ConfigError(f"a law is fitted on {allowed}, received split {shorten(split)}", f"choose {allowed}")


def _too_few(sizes: int) -> ConfigError:
    """Returns the error for a sweep of fewer than three sizes."""
    return ConfigError(
        f"a power law has three constants and needs three model sizes or more, received {sizes}",
        "give three sizes or more: --sizes 5, or a longer --sizes-file FILE",
    )

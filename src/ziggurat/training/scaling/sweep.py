"""A ladder of runs: every size of an experiment's model, with every seed, each an ordinary run folder.

``RUN/rung-02/seed-1`` resumes as any run does, and so the ladder does: what is finished is not trained again. All runs
share one prepared dataset. After each run ``RUN/scale.json`` is written anew. A run that diverges is noted, and the
ladder goes on without it.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, DivergedError, RunFolderError, ZigguratError, shorten
from ziggurat.core.files import LOCK_FILE, locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training.experiment import Experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.run import LADDER_FILE, Run
from ziggurat.training.scaling.model_sizes import SizedExperiment, grown_experiments, listed_experiments, measured_rungs
from ziggurat.training.scaling.result import FEWEST_RUNGS, DivergedRun, Judged, RungResult, RunResult, ScaleResult
from ziggurat.training.scaling.runs import finished_runs, result_of, run_folder, with_seed
from ziggurat.training.train import train


@dataclass(frozen=True, slots=True)
class Scaled:
    """How a call of :func:`scale` ended.

    Attributes:
        folder: of the ladder.
        result: the runs that are finished.
        signal: what interrupted it, if anything; finished runs are kept and the one that was training is saved.
        missing: how many runs it left to train.
    """

    folder: Path
    result: ScaleResult
    signal: signal.Signals | None
    missing: int


def scale(
    experiment: Experiment,
    folder: str | Path | None = None,
    *,
    rungs: int = 5,
    seeds: int = 2,
    split: Judged = "test",
    ladder: str | Path | None = None,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
) -> Scaled:
    """Train a ladder of sizes, or go on with one, and fit log-loss over compute.

    Args:
        experiment: the first rung.
        folder: default ``runs/NAME-scale``.
        rungs: how many sizes of the model's own ladder.
        seeds: runs a rung; seeds count up from ``training.seed``.
        split: on which the law is fitted.
        ladder: YAML file with the changes of each rung instead, as
            :func:`~ziggurat.training.scaling.model_sizes.listed_experiments`
            reads it.
        prepared: folder of the encoded dataset; default as in :func:`~ziggurat.training.api.prepare`.
        progress: where to show it.

    Raises:
        ConfigError: fewer than three rungs or one seed, a model without a ladder, rungs that do not grow or outgrow
            the machine, a split without rows.
        RunFolderError: the folder holds something else, or runs of another config or dataset; it is left as it was.
        DivergedError: so many runs diverged that fewer than three rungs have a finished one.
        ZigguratError: as :func:`~ziggurat.training.api.train`, with the rung and seed it happened in.
    """
    check_engine()
    _check_asked(None if ladder else rungs, seeds, split)
    experiment.check()
    if experiment.checkpoints.store is not None:
        raise ConfigError(
            f"checkpoints.store: {experiment.checkpoints.store} can hold one run's checkpoints, and a ladder has many",
            "leave it out: each run of a ladder has its checkpoints in its own folder",
        )
    progress = progress or Silent()
    place = Path("runs") / f"{experiment.name}-scale" if folder is None else Path(folder)
    experiments = listed_experiments(experiment, Path(ladder)) if ladder else grown_experiments(experiment, rungs)
    if len(experiments) < FEWEST_RUNGS:
        raise _too_few(len(experiments))
    _check_folder(place)
    dataset = prepare(experiment, prepared, progress)
    if not dataset.split(split).rows:
        raise ConfigError(f"the {split} split has no rows", "choose another --split, or give data.split a share")
    sized = measured_rungs(experiments, dataset.schema)
    with locked_folder(place, "training a ladder"):
        return _Sweep(place, sized, seeds, split, dataset, progress).run()


class _Sweep:
    """A ladder under way: what is finished of it, and what diverged."""

    def __init__(
        self,
        place: Path,
        rungs: Sequence[SizedExperiment],
        seeds: int,
        split: Judged,
        dataset: Dataset,
        progress: Progress,
    ) -> None:
        self.place, self.rungs, self.seeds = place, rungs, seeds
        self.split: Judged = split
        self.dataset, self.progress = dataset, progress
        first = {rung.number: rung.experiment.training.seed for rung in rungs}
        self.asked = {number: range(seed, seed + seeds) for number, seed in first.items()}
        self.runs: dict[int, dict[int, RunResult]] = {rung.number: {} for rung in rungs}
        self.diverged: dict[int, dict[int, DivergedRun]] = {rung.number: {} for rung in rungs}
        found = finished_runs(place, rungs, dataset, self.asked, progress)
        by_number = {rung.number: rung for rung in rungs}
        for (number, _), run in found.items():
            self._keep(by_number[number], run)

    def run(self) -> Scaled:
        """Every rung with the first seed, then with the next: an early stop leaves a whole, if noisy, curve."""
        for rung in self.rungs:
            self.progress.note(
                f"rung {rung.number} of {len(self.rungs)}: {rung.size.flops:,} FLOPs per example, "
                f"{rung.size.dense_parameters:,} dense parameters"
            )
        self.result().save(self.place)
        self.progress.start("ladder", len(self.rungs) * self.seeds, "runs")
        for turn in range(self.seeds):
            for rung in self.rungs:
                stopped = self._step(rung, self.asked[rung.number][turn])
                self.progress.advance(len(self.rungs) * self.seeds - self._missing())
                if stopped is not None:
                    self.progress.finish()
                    return Scaled(self.place, self.result(), stopped, self._missing())
        self.progress.finish()
        result = self.result()
        self._check_enough(result)
        result.save(self.place, result.fit())
        return Scaled(self.place, result, None, 0)

    def result(self) -> ScaleResult:
        first = self.rungs[0].experiment
        found = tuple(
            RungResult(
                rung.number,
                rung.experiment.model.model_dump(mode="json"),
                rung.size,
                tuple(run for _, run in sorted(self.runs[rung.number].items())),
                tuple(run for _, run in sorted(self.diverged[rung.number].items())),
            )
            for rung in self.rungs
        )
        fingerprint = self.dataset.fingerprint
        return ScaleResult(first.name, self.split, fingerprint, self.seeds, found, first.model_dump(mode="json"))

    def _step(self, rung: SizedExperiment, seed: int) -> signal.Signals | None:
        """Train one run, unless it is there, and keep what came of it; returns what stopped it."""
        if seed in self.runs[rung.number] or seed in self.diverged[rung.number]:
            return None
        at, folder = f"rung {rung.number}, seed {seed}", run_folder(self.place, rung, seed)
        try:
            outcome = train(with_seed(rung, seed), folder, prepared=self.dataset.folder, progress=self.progress)
        except DivergedError as error:
            where = folder.relative_to(self.place).as_posix()
            self.diverged[rung.number][seed] = DivergedRun(seed, where, error.problem)
            self.progress.note(f"{at}: {error.problem}; the ladder goes on without it")
            stopped = None
        except ZigguratError as error:
            raise type(error)(f"{at}: {error.problem}", error.hint) from None
        else:
            stopped = outcome.signal
            if outcome.results is not None:
                self._keep(rung, outcome.run)
                self._report(rung, seed)
        self.result().save(self.place)
        return stopped

    def _keep(self, rung: SizedExperiment, run: Run) -> None:
        rows = self.dataset.split("train").rows
        kept = result_of(run, rung, rows, self.place, self.split)
        if isinstance(kept, DivergedRun):
            self.diverged[rung.number][kept.seed] = kept
        else:
            self.runs[rung.number][kept.seed] = kept

    def _missing(self) -> int:
        """How many of the runs that are asked for are neither finished nor known to diverge."""
        known = {number: self.runs[number].keys() | self.diverged[number].keys() for number in self.asked}
        return sum(seed not in known[number] for number, seeds in self.asked.items() for seed in seeds)

    def _report(self, rung: SizedExperiment, seed: int) -> None:
        run = self.runs[rung.number].get(seed)
        if run is None:
            self.progress.note(f"rung {rung.number}, seed {seed}: {self.diverged[rung.number][seed].reason}")
            return
        loss = RungResult(rung.number, {}, rung.size, (run,)).mean(self.split, "log_loss")
        self.progress.note(
            f"rung {rung.number} of {len(self.rungs)}, seed {seed}: {rung.size.flops:,} FLOPs per example, "
            f"log-loss {loss:.5f} on {self.split}, {run.seconds:,.1f} s"
        )

    def _check_enough(self, result: ScaleResult) -> None:
        """Refuse to call a ladder done of which so much diverged that there is no law."""
        if len(result.finished) >= FEWEST_RUNGS:
            return
        lost = [f"rung {rung.number}, seed {run.seed}: {run.reason}" for rung in result.rungs for run in rung.diverged]
        raise DivergedError(
            f"{len(result.finished)} of {len(result.rungs)} rungs have a finished run, a law needs {FEWEST_RUNGS}\n  "
            + "\n  ".join(lost),
            "give another --run with lower optimizer.lr and embeddings.optimizer.lr, or with training.clip_norm; the "
            "same command tries the diverged runs again",
        )


def _check_asked(rungs: int | None, seeds: int, split: str) -> None:
    """Refuse numbers that make no ladder; ``rungs`` is None where a file lists them."""
    if rungs is not None and rungs < FEWEST_RUNGS:
        raise _too_few(rungs)
    if seeds < 1:
        raise ConfigError(f"a rung is trained with one seed or more, received {seeds} seeds", "give --seeds 2")
    if split not in get_args(Judged):
        allowed = " or ".join(get_args(Judged))
        raise ConfigError(f"a law is fitted on {allowed}, received split {shorten(split)}", f"choose {allowed}")


def _too_few(rungs: int) -> ConfigError:
    return ConfigError(
        f"a power law has three constants, and the ladder has {rungs} rungs",
        "give three rungs or more: --sizes 5, or a longer --sizes-file FILE",
    )


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else, before anything is written into it."""
    if folder.is_file():
        raise RunFolderError(f"{folder}: is a file", "name another folder with --run")
    if not folder.is_dir() or (folder / LADDER_FILE).is_file():
        return
    if any(item.name != LOCK_FILE and not item.name.startswith(".") for item in folder.iterdir()):
        kind = "is the folder of a single run" if (folder / "config.yaml").is_file() else "is not empty"
        raise RunFolderError(f"{folder}: {kind} and holds no ladder", "name another folder with --run")

"""A ladder of runs: every size of an experiment's model, with every seed, each an ordinary run folder.

``RUN/rung-02/seed-1`` resumes as any run does, and so the ladder does: what is finished is not trained again. All runs
share one prepared dataset. After each run ``RUN/scale.json`` is written anew.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, RunFolderError, ZigguratError
from ziggurat.core.files import LOCK_FILE, locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.dataset import Dataset
from ziggurat.training.api import prepare, train
from ziggurat.training.experiment import Experiment
from ziggurat.training.journal import read_journal
from ziggurat.training.run import Run, open_run
from ziggurat.training.rungs import Rung, grown_experiments, listed_experiments, measured_rungs
from ziggurat.training.scale_result import FEWEST_RUNGS, SCALE_FILE, Judged, RungResult, RunResult, ScaleResult


@dataclass(frozen=True, slots=True)
class Scaled:
    """How a call of :func:`scale` ended.

    Attributes:
        folder: of the ladder.
        result: the runs that are finished.
        signal: what interrupted it, if anything; finished runs are kept and the one that was training is saved.
    """

    folder: Path
    result: ScaleResult
    signal: signal.Signals | None


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
        ladder: YAML file with the changes of each rung instead, as :func:`~ziggurat.training.rungs.listed_experiments`
            reads it.
        prepared: folder of the encoded dataset; default as in :func:`~ziggurat.training.api.prepare`.
        progress: where to show it.

    Raises:
        ConfigError: fewer than three rungs, a model without a ladder, rungs that do not grow, a split without rows.
        RunFolderError: the folder holds something else, or runs of another config or dataset.
        ZigguratError: as :func:`~ziggurat.training.api.train`, with the rung and seed it happened in.
    """
    check_engine()
    experiment.check()
    progress = progress or Silent()
    place = Path("runs") / f"{experiment.name}-scale" if folder is None else Path(folder)
    experiments = listed_experiments(experiment, Path(ladder)) if ladder else grown_experiments(experiment, rungs)
    if len(experiments) < FEWEST_RUNGS:
        raise ConfigError(
            f"a power law has three constants, and the ladder has {len(experiments)} rungs",
            "give three rungs or more: --rungs 5, or a longer --ladder FILE",
        )
    _check_folder(place)
    dataset = prepare(experiment, prepared, progress)
    if not dataset.split(split).rows:
        raise ConfigError(f"the {split} split has no rows", "choose another --split, or give data.split a share")
    climbed = measured_rungs(experiments, dataset.schema)
    with locked_folder(place, "training a ladder"):
        return _climb(place, climbed, seeds, split, dataset, progress)


def _climb(
    place: Path, rungs: Sequence[Rung], seeds: int, split: Judged, dataset: Dataset, progress: Progress
) -> Scaled:
    """Every rung with the first seed, then with the next: an early stop leaves a whole, if noisy, curve."""
    done: dict[int, list[RunResult]] = {rung.number: [] for rung in rungs}

    def result() -> ScaleResult:
        first = rungs[0].experiment
        found = tuple(
            RungResult(rung.number, rung.experiment.model.model_dump(mode="json"), rung.size, tuple(done[rung.number]))
            for rung in rungs
        )
        return ScaleResult(first.name, split, dataset.fingerprint, seeds, found, first.model_dump(mode="json"))

    for rung in rungs:
        progress.note(
            f"rung {rung.number} of {len(rungs)}: {rung.size.flops:,} FLOPs per example, "
            f"{rung.size.dense_parameters:,} dense parameters"
        )
    result().save(place)
    progress.start("ladder", len(rungs) * seeds, "runs")
    for turn in range(seeds):
        for rung in rungs:
            folder = place / f"rung-{rung.number:02d}" / f"seed-{rung.experiment.training.seed + turn}"
            run, stopped, anew = _trained(_with_seed(rung, turn), folder, rung, dataset, progress)
            if run is not None:
                done[rung.number].append(_finished(run, rung, dataset.split("train").rows, place))
                result().save(place)
                progress.advance(sum(map(len, done.values())))
                if anew:
                    _tell(progress, rung, len(rungs), turn, seeds, done[rung.number][-1], split)
            if stopped is not None:
                progress.finish()
                return Scaled(place, result(), stopped)
    progress.finish()
    final = result()
    final.save(place, final.fit())
    return Scaled(place, final, None)


def _with_seed(rung: Rung, turn: int) -> Experiment:
    training = rung.experiment.training
    return rung.experiment.model_copy(update={"training": training.model_copy(update={"seed": training.seed + turn})})


def _trained(
    experiment: Experiment, folder: Path, rung: Rung, dataset: Dataset, progress: Progress
) -> tuple[Run | None, signal.Signals | None, bool]:
    """The run if it is finished, what stopped it, and whether it was trained just now."""
    if (folder / "results.json").is_file():
        run = open_run(folder)
        if run.experiment == experiment:
            run.dataset(dataset.folder)
            return run, None, False
    try:
        outcome = train(experiment, folder, prepared=dataset.folder, progress=progress)
    except ZigguratError as error:
        at = f"rung {rung.number}, seed {experiment.training.seed}"
        raise type(error)(f"{at}: {error.problem}", error.mend) from None
    return (None if outcome.results is None else outcome.run), outcome.signal, True


def _finished(run: Run, rung: Rung, rows: int, place: Path) -> RunResult:
    results = run.results
    assert results is not None, run.folder
    batch = run.experiment.training.batch_size
    examples = examples_seen(results["steps"], rows, batch)
    return RunResult(
        seed=run.experiment.training.seed,
        folder=run.folder.relative_to(place).as_posix(),
        steps=results["steps"],
        examples=examples,
        training_flops=3 * rung.size.flops * examples,
        seconds=round(_training_seconds(run, rows, batch), 3),
        figures=results["figures"],
    )


def examples_seen(steps: int, rows: int, batch_size: int) -> int:
    """Rows that ``steps`` steps train on, when the last step of each epoch takes what is left of ``rows``."""
    epochs, rest = divmod(steps, -(-rows // batch_size))
    return epochs * rows + rest * batch_size


def _training_seconds(run: Run, rows: int, batch_size: int) -> float:
    """From the journal, so that a run that was stopped and went on counts all its time; without evaluation."""
    seconds, before = 0.0, 0
    for record in read_journal(run.metrics_path):
        if record["split"] == "train" and record["rows_per_s"]:
            seen = examples_seen(record["step"], rows, batch_size)
            seconds += (seen - before) / record["rows_per_s"]
            before = seen
    return seconds


def _tell(progress: Progress, rung: Rung, rungs: int, turn: int, seeds: int, run: RunResult, split: Judged) -> None:
    loss = RungResult(rung.number, {}, rung.size, (run,)).mean(split, "log_loss")
    progress.note(
        f"rung {rung.number} of {rungs}, seed {turn + 1} of {seeds}: {rung.size.flops:,} FLOPs per example, "
        f"log-loss {loss:.5f} on {split}, {run.seconds:,.1f} s"
    )


def _check_folder(folder: Path) -> None:
    """Refuse a folder that holds something else, before anything is written into it."""
    if folder.is_file():
        raise RunFolderError(f"{folder}: is a file", "name another folder with --run")
    if not folder.is_dir() or (folder / SCALE_FILE).is_file():
        return
    if any(item.name != LOCK_FILE and not item.name.startswith(".") for item in folder.iterdir()):
        kind = "is the folder of a single run" if (folder / "config.yaml").is_file() else "is not empty"
        raise RunFolderError(f"{folder}: {kind} and holds no ladder", "name another folder with --run")

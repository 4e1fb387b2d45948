"""The run folders of a ladder: which lie there, whether they are of this ladder, what the finished ones amount to."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training.experiment import Experiment
from ziggurat.training.metrics_log import read_journal
from ziggurat.training.run import Run, check_config, check_versions, open_run
from ziggurat.training.scaling.model_sizes import SizedExperiment
from ziggurat.training.scaling.result import DivergedRun, Judged, RunResult


def with_seed(rung: SizedExperiment, seed: int) -> Experiment:
    """The experiment of one run of a rung."""
    training = rung.experiment.training.model_copy(update={"seed": seed})
    return rung.experiment.model_copy(update={"training": training})


def run_folder(place: Path, rung: SizedExperiment, seed: int) -> Path:
    """``PLACE/rung-02/seed-1``."""
    return _rung_folder(place, rung.number) / f"seed-{seed}"


def finished_runs(
    place: Path, rungs: Sequence[SizedExperiment], dataset: Dataset, asked: Mapping[int, range], progress: Progress
) -> dict[tuple[int, int], Run]:
    """(rung, seed) → every finished run of these rungs in the ladder's folder, also of seeds that are not asked for.

    Args:
        place: the ladder's folder; nothing is written into it.
        rungs: of the ladder as it is now asked for.
        dataset: that all runs must have been trained on.
        asked: rung → seeds that are to be trained, where they are not.
        progress: is told what is left out.

    Raises:
        RunFolderError: a rung holds a run of another config or dataset, or one to go on with of other versions.
    """
    found: dict[tuple[int, int], Run] = {}
    rejected: dict[int, _RejectedRun] = {}
    fine: set[int] = set()
    for rung, seed, folder in _existing_folders(place, rungs):
        try:
            run, finished = _checked(folder, with_seed(rung, seed), dataset, seed in asked[rung.number])
        except RunFolderError as error:
            rejected.setdefault(rung.number, _RejectedRun(seed, error.problem))
            continue
        fine.add(rung.number)
        if finished:
            found[rung.number, seed] = run
        elif seed not in asked[rung.number]:
            progress.note(f"{folder} is not trained to the end and not asked for: it is left out")
    if rejected:
        number, first = min(rejected.items())
        alone = len(rejected) == 1 and fine - {number}
        which = f"{_rung_folder(place, number)}, which is then trained anew" if alone else str(place)
        raise RunFolderError(
            f"rung {number}, seed {first.seed}: {first.problem}", f"name another folder with --run, or delete {which}"
        )
    beyond = [path.name for path in sorted(place.glob("rung-*")) if path.name not in _names(rungs)]
    if beyond:
        progress.note(f"{place} also holds {', '.join(beyond)}, left out: the ladder has {len(rungs)} rungs")
    return found


def result_of(run: Run, rung: SizedExperiment, rows: int, place: Path, split: Judged) -> RunResult | DivergedRun:
    """A finished run's figures and what they cost; diverged where its log-loss is undefined.

    Args:
        run: of the rung.
        rung: whose FLOPs it cost.
        rows: of the train split.
        place: the ladder's folder.
        split: on which it is judged.
    """
    results = run.results
    assert results is not None, run.folder
    seed, folder = run.experiment.training.seed, run.folder.relative_to(place).as_posix()
    losses = [value for name, value in results["figures"][split].items() if name.endswith("log_loss")]
    if not all(map(math.isfinite, losses)):
        return DivergedRun(seed, folder, f"its log-loss on {split} is no number")
    batch = run.experiment.training.batch_size
    examples = examples_seen(results["steps"], rows, batch)
    return RunResult(
        seed=seed,
        folder=folder,
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


@dataclass(frozen=True, slots=True)
class _RejectedRun:
    seed: int
    problem: str


def _existing_folders(place: Path, rungs: Sequence[SizedExperiment]) -> Iterator[tuple[SizedExperiment, int, Path]]:
    """The run folders that are there, by rung and seed."""
    for rung in rungs:
        folders = _rung_folder(place, rung.number).glob("seed-*/config.yaml")
        seeds = (path.parent.name.removeprefix("seed-") for path in folders)
        for seed in sorted(int(seed) for seed in seeds if seed.isdecimal()):
            yield rung, seed, run_folder(place, rung, seed)


def _checked(folder: Path, experiment: Experiment, dataset: Dataset, wanted: bool) -> tuple[Run, bool]:
    """The run, and whether it is trained as far as ``experiment`` asks."""
    run = open_run(folder)
    check_config(run, experiment)
    if (folder / "dataset.json").is_file():
        run.dataset(dataset.folder)
    ours, theirs = ((each.training.epochs, each.training.max_steps) for each in (experiment, run.experiment))
    finished = run.results is not None and ours == theirs
    if wanted and not finished:
        check_versions(run)
    return run, finished


def _rung_folder(place: Path, number: int) -> Path:
    return place / f"rung-{number:02d}"


def _names(rungs: Sequence[SizedExperiment]) -> set[str]:
    return {_rung_folder(Path(), rung.number).name for rung in rungs}


def _training_seconds(run: Run, rows: int, batch_size: int) -> float:
    """From the journal, so that a run that was stopped and went on counts all its time; without evaluation."""
    seconds, before = 0.0, 0
    for record in read_journal(run.metrics_path):
        if record["split"] == "train" and record["rows_per_s"]:
            seen = examples_seen(record["step"], rows, batch_size)
            seconds += (seen - before) / record["rows_per_s"]
            before = seen
    return seconds

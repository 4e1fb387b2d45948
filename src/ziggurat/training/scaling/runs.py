"""The run folders of a scaling sweep: finds them, checks that they belong to it, reads the results of finished runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ziggurat.core.errors import RunFolderError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.resume import check_config, check_versions
from ziggurat.training.run_folder.run import Run, open_run
from ziggurat.training.run_folder.run_files import RESULTS_FILE
from ziggurat.training.scaling.model_sizes import SizedExperiment
from ziggurat.training.scaling.result import DivergedRun, Judged, RunResult


def with_seed(sized: SizedExperiment, seed: int) -> Experiment:
    """Returns the experiment of one run of a size."""
    training = sized.experiment.training.model_copy(update={"seed": seed})
    return sized.experiment.model_copy(update={"training": training})


def run_folder(sweep: Path, sized: SizedExperiment, seed: int) -> Path:
    """Returns the folder of one run, such as ``SWEEP/rung-02/seed-1``."""
    return _size_folder(sweep, sized.number) / f"seed-{seed}"


def finished_runs(
    sweep: Path, sizes: Sequence[SizedExperiment], dataset: Dataset, requested: Mapping[int, range], progress: Progress
) -> dict[tuple[int, int], Run]:
    """Returns (size, seed) → run for every finished run of these sizes, including seeds that are not requested.

    Args:
        sweep: the folder of the sweep; nothing is written into it.
        sizes: the requested sizes.
        dataset: the dataset that all runs must have been trained on.
        requested: the number of each size → the seeds to train unless their runs are finished.
        progress: receives a note about whatever is left out.

    Raises:
        RunFolderError: a run has another config or dataset, or a run to resume was trained with other library versions.
    """
    found: dict[tuple[int, int], Run] = {}
    rejected: dict[int, _RejectedRun] = {}
    accepted: set[int] = set()
    for sized, seed, folder in _existing_folders(sweep, sizes):
        is_requested = seed in requested[sized.number]
        try:
            run, finished = _checked(folder, with_seed(sized, seed), dataset, is_requested)
        except RunFolderError as error:
            rejected.setdefault(sized.number, _RejectedRun(seed, error.problem))
            continue
        accepted.add(sized.number)
        if finished:
            found[sized.number, seed] = run
        elif not is_requested:
            progress.note(f"{folder} is left out: it is not fully trained, and its seed is not requested")
    if rejected:
        number, first = min(rejected.items())
        only_one = len(rejected) == 1 and accepted - {number}
        which = f"{_size_folder(sweep, number)}, which is then trained again" if only_one else str(sweep)
        raise RunFolderError(
            f"size {number}, seed {first.seed}: {first.problem}", f"name another folder with --run, or delete {which}"
        )
    names = {_size_folder(sweep, sized.number).name for sized in sizes}
    others = [path.name for path in sorted(sweep.glob("rung-*")) if path.name not in names]
    if others:
        progress.note(f"{sweep} also holds {', '.join(others)}, left out: the sweep has {len(sizes)} sizes")
    return found


def result_of(run: Run, sized: SizedExperiment, rows: int, sweep: Path, split: Judged) -> RunResult | DivergedRun:
    """Returns a finished run's figures and cost; a diverged run if its log-loss is NaN or infinite.

    Args:
        run: the finished run.
        sized: the size that it belongs to.
        rows: the number of rows in the train split.
        sweep: the folder of the sweep.
        split: the split on which the law is fitted.
    """
    results = run.results
    assert results is not None, run.folder
    seed, folder = run.experiment.training.seed, run.folder.relative_to(sweep).as_posix()
    figures = results["figures"].get(split)
    if figures is None:
        raise RunFolderError(
            f"{run.folder / RESULTS_FILE}: has no figures of the {split} split",
            f"delete it and run the same command again, which evaluates {run.folder} again",
        )
    losses = [value for name, value in figures.items() if name.endswith("log_loss")]
    if not all(map(math.isfinite, losses)):
        return DivergedRun(seed, folder, f"its log-loss on {split} is NaN or infinite")
    batch = run.experiment.training.batch_size
    examples = examples_seen(results["steps"], rows, batch)
    return RunResult(
        seed=seed,
        folder=folder,
        steps=results["steps"],
        examples=examples,
        training_flops=3 * sized.size.flops * examples,
        seconds=round(_training_seconds(run, rows, batch), 3),
        figures=results["figures"],
    )


def examples_seen(steps: int, rows: int, batch_size: int) -> int:
    """Returns the number of rows that ``steps`` steps train on; the last step of each epoch may be smaller."""
    epochs, rest = divmod(steps, -(-rows // batch_size))
    return epochs * rows + rest * batch_size


@dataclass(frozen=True, slots=True)
class _RejectedRun:
    """A run that does not belong to the sweep, and why."""

    seed: int
    problem: str


def _existing_folders(sweep: Path, sizes: Sequence[SizedExperiment]) -> Iterator[tuple[SizedExperiment, int, Path]]:
    """Yields the existing run folders of these sizes, by size and seed."""
    for sized in sizes:
        folders = _size_folder(sweep, sized.number).glob("seed-*/config.yaml")
        seeds = (path.parent.name.removeprefix("seed-") for path in folders)
        for seed in sorted(int(seed) for seed in seeds if seed.isdecimal()):
            yield sized, seed, run_folder(sweep, sized, seed)


def _checked(folder: Path, experiment: Experiment, dataset: Dataset, requested: bool) -> tuple[Run, bool]:
    """Returns the run, and whether it is trained as far as ``experiment`` requests.

    Raises:
        RunFolderError: it has another config or dataset, or it is to be resumed and has other library versions.
    """
    run = open_run(folder)
    check_config(run, experiment)
    if (folder / "dataset.json").is_file():
        run.dataset(dataset.folder)
    ours, theirs = ((each.training.epochs, each.training.max_steps) for each in (experiment, run.experiment))
    finished = run.results is not None and ours == theirs
    if requested and not finished:
        check_versions(run)
    return run, finished


def _size_folder(sweep: Path, number: int) -> Path:
    """Returns the folder with the runs of one size. The format keeps its older name of a size, rung."""
    return sweep / f"rung-{number:02d}"


def _training_seconds(run: Run, rows: int, batch_size: int) -> float:
    """Returns the duration of training without evaluation, from the journal.

    If the run was interrupted and resumed, the time before the interruption is included.
    """
    seconds, before = 0.0, 0
    for record in read_metrics_log(run.metrics_path, run.files):
        if record["split"] == "train" and record.get("rows_per_s"):
            seen = examples_seen(record["step"], rows, batch_size)
            seconds += (seen - before) / record["rows_per_s"]
            before = seen
    return seconds

"""Trains an experiment in a run folder: prepares if needed, trains or resumes, evaluates the best checkpoint."""

from __future__ import annotations

import contextlib
import math
import signal
import threading
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ziggurat.checkpoint.store.claim import Claim, claimed
from ziggurat.core.engine import check_engine
from ziggurat.core.errors import AlreadyTraining
from ziggurat.core.files import locked_folder
from ziggurat.core.memory import explained_out_of_memory, explained_thread_limit
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.statistics import has_statistics, load_features
from ziggurat.data.encoded.dataset import Dataset, Split
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.features.outside_encoders import check_outside_encoders
from ziggurat.features.preparation.leaks import leaks
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.heartbeat import report_lost_ranks
from ziggurat.parallel.own_random import preserved_random_state
from ziggurat.training.batch_source import dataset_of_readers
from ziggurat.training.constant_prediction import collapsed_tasks
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.loop import Trainer
from ziggurat.training.malloc_tuning import keep_freed_memory
from ziggurat.training.open_recommender import open_recommender
from ziggurat.training.perfect_prediction import perfect_tasks
from ziggurat.training.preparation import prepare
from ziggurat.training.process_group import pick_device, process_group, refuse_fork
from ziggurat.training.recommender_state import restore_from
from ziggurat.training.run_folder.precision import choices, with_choices
from ziggurat.training.run_folder.resume import (
    attach_dataset,
    begin_run,
    check_resumable,
    check_run_folder,
    record_config,
)
from ziggurat.training.run_folder.run import Run, write_results
from ziggurat.training.run_folder.run_files import CONFIG_FILE
from ziggurat.training.warm_start.load import check_warm_start

_LESS_MEMORY = (
    "`ziggurat plan` says what tables need; a smaller training.batch_size, smaller tables (embeddings.dim, rows of "
    "encoders) or more ranks on more hosts need less. Run the command again to resume from the last checkpoint"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call of :func:`train` ended.

    Attributes:
        run: the run folder.
        step: total number of optimizer steps done.
        results: the content of ``results.json`` once training has finished, else None.
        signal: the signal that stopped training, if any, even during the last step; the state is saved.
    """

    run: Run
    step: int
    results: dict[str, Any] | None
    signal: signal.Signals | None


def train(
    experiment: Experiment | str | Path,
    rows: Any = None,
    run_folder: str | Path | None = None,
    *,
    prepared: str | Path | None = None,
    progress: Progress | None = None,
    stop_after: int | None = None,
    splits: tuple[Split, ...] = ("validation", "test"),
) -> Outcome:
    """Prepares the data if needed, trains from the last checkpoint if there is one, and evaluates the best checkpoint.

    A process trains one experiment at a time, because torch's random numbers and number of threads belong to the
    process. Predictions and evaluations may run beside a training, in other threads. The random state of the caller
    (torch, numpy, Python) is afterwards what it was before.

    Args:
        experiment: the config, or its YAML file.
        rows: the rows, if they are in memory, as in :func:`prepare`. A path is taken for ``run_folder``.
        run_folder: the run folder; default ``runs/NAME``.
        prepared: folder of the encoded dataset; default as in :func:`prepare`. With readers, the folder for the copy of
            their dataset, without training rows; default: ``dataset`` in the run folder.
        progress: where to show progress.
        stop_after: total number of steps after which to save and return.
        splits: the splits whose figures are computed at the end.

    Raises:
        AlreadyTraining: another training is running in this process; it is not affected.
        ZigguratError: bad input, a run folder of another config, a full disk, exhausted memory, a diverging loss.
    """
    check_engine()
    if isinstance(rows, str | Path):
        rows, run_folder = None, rows
    experiment = as_experiment(experiment)
    experiment.check()
    progress = progress or Silent()
    folder = Path("runs") / experiment.name if run_folder is None else Path(run_folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_only_training(folder))
        device = pick_device(experiment.training.device)
        stack.enter_context(preserved_random_state(device))
        if experiment.training.threads is not None:
            torch.set_num_threads(experiment.training.threads)
        world = stack.enter_context(process_group(device, experiment.parallel.timeout_s))
        stack.enter_context(explained_thread_limit())
        stack.enter_context(explained_out_of_memory(_LESS_MEMORY))
        trainers: list[Trainer] = []
        claims: list[Claim] = []
        at = lambda: trainers[0].at.step if trainers else 0  # noqa: E731
        stack.enter_context(report_lost_ranks(at, experiment.parallel.timeout_s))
        if not world.leads:
            progress = Silent()
        given = experiment
        experiment = with_choices(given, on_first_rank(lambda: choices(given, folder, device)))

        def open_folder() -> Path:
            check_run_folder(folder)
            stack.enter_context(locked_folder(folder, "training"))
            check_warm_start(folder, experiment)
            check_outside_encoders(folder / ENCODERS, experiment.features)
            is_new, resumes = not (folder / CONFIG_FILE).is_file(), check_resumable(folder, experiment)
            if is_new:
                begin_run(run)
            claims.append(stack.enter_context(claimed(run.checkpoints.store, run.owner, note=progress.note)))
            if experiment.training.readers:
                copy = None if prepared is None else Path(prepared)
                dataset = dataset_of_readers(run, copy, progress, resumes=resumes)
            else:
                dataset = prepare(experiment, rows, prepared, progress=progress)
            if not is_new and not resumes:
                progress.note(
                    f"{folder}: was started with another config or other versions and has trained no step: starting "
                    "again"
                )
                begin_run(run)
            attach_dataset(run, dataset)
            return dataset.folder

        run = Run(folder, experiment)
        dataset = Dataset(on_first_rank(open_folder))
        keep_freed_memory()
        layout = experiment.layout(dataset.schema)
        opened = stack.enter_context(
            open_recommender(run, layout, device, prepared=dataset.folder, keep_plan=True, progress=progress)
        )
        if opened.note:
            progress.note(opened.note)
        trainer = Trainer(run, dataset, opened.recommender, device, progress, claims[0] if claims else None)
        trainers.append(trainer)
        on_first_rank(lambda: record_config(run))  # only now: whatever may refuse the training has not done so
        if trainer.at.step:
            progress.note(f"{run.folder}: resuming at step {trainer.at.step:,} of {trainer.total_steps:,}")
            damaged_log = on_first_rank(trainer.log_note)
            if damaged_log is not None:
                progress.note(damaged_log)
        started = time.perf_counter()
        stop = None if trainer.finished else trainer.train(stop_after)
        on_first_rank(lambda: None)  # waits until the first rank has written its last checkpoint
        if not trainer.finished:
            return Outcome(run, trainer.at.step, None, stop.signal if stop else None)
        results = on_first_rank(lambda: run.results)
        if stop is not None or results is None:
            results = _finish(run, trainer, time.perf_counter() - started, progress, splits)
        return Outcome(run, trainer.at.step, results, stop.signal if stop else None)


_training = threading.Lock()
_trained: list[Path] = []
"""The run folder of the training that holds the lock."""


@contextlib.contextmanager
def _only_training(folder: Path) -> Generator[None]:
    """Refuses to train while another training runs in this process.

    Raises:
        AlreadyTraining: another training runs.
        ForkedProcess: this process was forked from one that had computed.
    """
    refuse_fork()
    if not _training.acquire(blocking=False):
        where = "".join(f" ({each})" for each in _trained)
        raise AlreadyTraining(
            f"{folder}: another training is running in this process{where}; it goes on",
            "wait until it has ended, or train in a process of its own",
        )
    try:
        _trained.append(folder)
        yield
    finally:
        _trained.clear()
        _training.release()


def _finish(
    run: Run, trainer: Trainer, seconds: float, progress: Progress, splits: tuple[Split, ...]
) -> dict[str, Any]:
    """Restores the best checkpoint, evaluates it on the splits, and writes ``results.json``."""
    best = on_first_rank(lambda: run.checkpoints.resolve("best"))
    note = restore_from(trainer.recommender, run.checkpoints, best)
    if note is not None:
        progress.note(note)
    schema, evaluation = trainer.dataset.schema, run.experiment.evaluation
    figures: dict[str, dict[str, float]] = {}
    nonempty = {split: blocks for split in splits if (blocks := trainer.dataset.split(split)).rows}
    display = progress if trainer.world.leads else None
    for split, blocks in nonempty.items():
        metrics = evaluate_split(
            trainer.recommender, blocks, schema, trainer.device, evaluation.batch_size, progress=display
        )
        figures[split] = metrics.compute()
        if split == next(iter(nonempty)):  # one split suffices
            for sentence in collapsed_tasks(metrics, run.experiment) + perfect_tasks(metrics):
                progress.note(sentence)
    if trainer.world.leads and has_statistics(trainer.dataset.folder):
        statistics = load_features(trainer.dataset.folder)
        for warning in leaks(run.experiment.features, run.experiment.data.labels, statistics):
            progress.note(warning)
    stored = {
        split: {k: v if math.isfinite(v) else None for k, v in values.items()} for split, values in figures.items()
    }
    results: dict[str, Any] = {
        "steps": trainer.at.step, "best_step": best, "seconds": round(seconds, 3), "figures": stored
    }  # fmt: skip
    on_first_rank(lambda: write_results(run, results))
    return {**results, "figures": figures}

"""Searches the settings of an experiment that validate best, several trainings at a time.

Each trial is a run in ``SEARCH/trials/NUMBER``, trained by a process of its own on the prepared data that all share.
Validation alone decides: a trial does not evaluate the test split, and ``results.json`` of a trial has no test figures.
Those of the best trial are computed once, after the last trial has ended. Every step is in ``SEARCH/study.journal``, so
that the search resumes however it ended; trials that were running go on from their last checkpoints.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, DataError, EnvironmentMismatch, shorten
from ziggurat.core.files import locked_folder, write_json
from ziggurat.core.progress import Progress, Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.metrics.names import higher_is_better
from ziggurat.search import outputs
from ziggurat.search.ensemble import SearchedEnsemble, best_trials, make_ensemble, named_folders
from ziggurat.search.figures_on_test import figures_on_test
from ziggurat.search.lead import Lead, lead_of
from ziggurat.search.page import PAGE_FILE, write_page
from ziggurat.search.repeats import is_exhausted, twin
from ziggurat.search.rungs import first_share, share_of
from ziggurat.search.same_search import check_same
from ziggurat.search.searchable import check_arguments, check_searchable
from ziggurat.search.space import Space, default_space, own_settings, read_space, with_settings
from ziggurat.search.study import WHOLE, Study, TrialRecord
from ziggurat.search.trial_process import Ended, LocalProcess, Start, TrialProcess, discard
from ziggurat.search.validation_rows import check_validation_rows
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.run_folder.own_folder import check_own_folder
from ziggurat.training.signals import StopRequest
from ziggurat.training.train_state import monitored

if TYPE_CHECKING:
    from ziggurat.features.preparation.ray_cluster import RayCluster

SETTINGS_FILE = "search.json"
JOURNAL_FILE = "study.journal"
TRIALS = "trials"
_POLL_S = 0.1
_OF_THE_SETTINGS = frozenset({"ConfigError", "InvalidSection", "DivergedError", "OutOfMemory"})
"""Errors of a trial that its settings can cause; the search goes on. Others stop it."""


@dataclass(frozen=True, slots=True)
class Searched:
    """How a search ended.

    Attributes:
        folder: the folder of the search.
        best: the best trial; None if none is complete yet. Of a finished search, the config as it is unless the best
            is ahead of it by more than the noise of the validation rows: see ``lead``.
        trials: what is known of each trial.
        test: figures of the best trial on the test split; empty until the search is finished, or if there is none.
        signal: the signal that stopped it, if any.
        missing: how many of the requested trials have not ended.
        ensemble: the ensemble of the best trials, once the search is finished, if it was asked for.
        lead: how far the trial with the best value is ahead of the config as it is, once the search is finished; None
            if that trial is the config as it is, or if it cannot be told.
    """

    folder: Path
    best: TrialRecord | None
    trials: tuple[TrialRecord, ...]
    test: dict[str, float]
    signal: signal.Signals | None
    missing: int
    ensemble: SearchedEnsemble | None = None
    lead: Lead | None = None


def search_hyperparameters(
    experiment: Experiment | str | Path,
    folder: str | Path | None = None,
    *,
    trials: int,
    hours: float | None = None,
    jobs: int | None = None,
    space: str | Path | None = None,
    seed: int = 0,
    prepared: str | Path | None = None,
    ray: str | None = None,
    ensemble: int | None = None,
    progress: Progress | None = None,
) -> Searched:
    """Searches settings that validate better, or resumes such a search.

    The first trial is the config as it is, so the best is never worse on validation. It stays the best unless another
    is ahead of it by more than a standard error, where the metric is the loss: the best of many is ahead by luck too.

    Args:
        experiment: the experiment, or its YAML file; ``training.monitor`` names the metric that decides.
        folder: the folder of the search; default: ``searches/NAME``.
        trials: how many trials the search has in all, with those of earlier calls.
        hours: after so long, this call stops; the same call resumes it.
        jobs: trials that run at a time, which share the cores; default: one, on a cluster one for each GPU or CPU.
        space: a YAML file with the keys to vary and their values; default: what follows from the config.
        seed: seeds the choice of settings. The trials all train with ``training.seed``.
        prepared: folder of the encoded dataset; default: as in :func:`~ziggurat.training.api.prepare`.
        ray: address of a Ray cluster whose hosts train the trials; they see both folders under the same paths.
        ensemble: how many of the best complete trials are considered for an ensemble, which validation weighs; their
            runs are kept. Default: no ensemble.
        progress: where to show progress.

    Raises:
        ConfigError: an argument, a key of the space or the config is not possible.
        FolderInUse: another process searches in the folder.
        RunFolderError: the folder holds something else, or a search of another config, space or dataset.
        EnvironmentMismatch: Optuna or Ray is not installed, the cluster cannot be reached, or a trial died of a fault
            that is not its settings'.
        ZigguratError: the config itself cannot be trained, or the disk is full.
    """
    check_engine()
    check_arguments(trials, jobs, hours, ensemble)
    experiment = as_experiment(experiment)
    experiment.check()
    check_searchable(experiment)
    progress = progress or Silent()
    folder = Path("searches") / experiment.name if folder is None else Path(folder)
    found = default_space(experiment) if space is None else read_space(Path(space), experiment)
    check_own_folder(folder, SETTINGS_FILE, "search")
    deadline = math.inf if hours is None else time.monotonic() + 3600 * hours
    with locked_folder(folder, "searching"):
        settings: dict[str, Any] = {
            "experiment": experiment.model_dump(mode="json"),
            "space": {key: dimension.to_json() for key, dimension in found.items()},
            "seed": seed,
        }
        check_same(folder / SETTINGS_FILE, settings)
        with contextlib.ExitStack() as stack:
            cluster = None if ray is None else _cluster(stack, ray)  # a long preparation must not be for nothing
            dataset = prepare(experiment, folder=prepared, progress=progress)
            check_validation_rows(dataset)
            settings["dataset"] = dataset.fingerprint
            check_same(folder / SETTINGS_FILE, settings)
            write_json(folder / SETTINGS_FILE, settings)
            jobs, start = _start(cluster, jobs, dataset.folder, experiment.training.device)
            search = _Search(folder, experiment, found, dataset, seed, trials, jobs, start, ensemble, progress)
            return search.run(deadline)


def _cluster(stack: contextlib.ExitStack, address: str) -> RayCluster:
    """Returns a cluster, which is left with ``stack``."""
    from ziggurat.features.preparation.ray_cluster import RayCluster

    return stack.enter_context(RayCluster(address))


def _start(cluster: RayCluster | None, jobs: int | None, prepared: Path, device: str) -> tuple[int, Start]:
    """Returns how many trials run at a time, and what starts them."""
    if cluster is None:
        jobs = jobs or 1
        return jobs, partial(LocalProcess, threads=max(1, len(os.sched_getaffinity(0)) // jobs))
    from ziggurat.search.ray_trial import ray_start

    return ray_start(cluster, prepared.resolve(), jobs, device)


class _Search:
    """A search in progress."""

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        space: Space,
        dataset: Dataset,
        seed: int,
        trials: int,
        jobs: int,
        start: Start,
        ensemble: int | None,
        progress: Progress,
    ) -> None:
        self.folder, self.experiment, self.space, self.dataset = folder, experiment, space, dataset
        self.trials, self.jobs, self.start, self.progress = trials, jobs, start, progress
        self.ensemble = ensemble
        self.monitor = experiment.training.monitor
        self.own = own_settings(experiment, space)
        self.study = Study(
            folder / JOURNAL_FILE, space, self.own, higher_is_better=higher_is_better(self.monitor),
            first_share=first_share(experiment, dataset.split("train").rows), seed=seed,
        )  # fmt: skip
        self._processes: dict[int, TrialProcess] = {}
        self._pruned: set[int] = set()

    def run(self, deadline: float) -> Searched:
        """Runs the missing trials, until a signal or the deadline."""
        waiting = self.study.unfinished()
        self._tidy()
        self.progress.start("search", self.trials, "trials")
        self.progress.advance(sum(each.state != "running" for each in self.study.records()))
        with StopRequest() as stop:
            try:
                while stop.signal is None and time.monotonic() < deadline:
                    while stop.signal is None and len(self._processes) < self.jobs and (waiting or self._may_begin()):
                        number = waiting.pop(0) if waiting else self.study.ask()
                        self._start(number)
                    if not self._processes:
                        break
                    time.sleep(_POLL_S)
                    self._watch()
                self._stop_all()
            except BaseException:
                for process in self._processes.values():
                    process.kill()
                raise
        records = self.study.records()
        wanted = min(self.trials, len(records)) if is_exhausted(records, self.space) else self.trials
        missing = max(0, wanted - sum(each.state != "running" for each in records))
        if missing == 0 and wanted < self.trials:
            self.progress.note(f"the space has no further settings: {wanted} trials of {self.trials} tried them all")
        best = self.study.best()
        message = "" if best is None else f"best val_{self.monitor} {best.value:.6g} in trial {best.number}"
        self.progress.finish(message)
        if best is None and missing == 0:
            raise EnvironmentMismatch(
                f"{self.folder}: none of {len(records)} trials was trained to its end: {records[0].reason}",
                "train the config itself first, with `ziggurat train`",
            )
        lead = None
        if best is not None and missing == 0:
            lead = self._lead(best)
            best = self.study.record(0) if lead is not None and lead.is_noise else best
        test = self._test_figures(best) if best is not None and missing == 0 else {}
        if best is not None:
            self._write(best, test, lead=lead)
        together = None
        if best is not None and missing == 0 and self.ensemble is not None:
            together = make_ensemble(
                self.folder, records, self.ensemble, self.run_folder, self.dataset, self.progress,
                higher_is_better=higher_is_better(self.monitor),
            )  # fmt: skip
            self._write(best, test, together, lead)
        return Searched(self.folder, best, tuple(records), test, stop.signal, missing, together, lead)

    def _may_begin(self) -> bool:
        """Whether another trial is to begin: fewer have than are wanted, and the space has settings left."""
        records = self.study.records()
        return len(records) < self.trials and not is_exhausted(records, self.space)

    def _start(self, number: int) -> None:
        settings = self.study.settings(number)
        same = twin(self.study.records(), settings)
        if same is not None:  # it would be trained to the same figures
            self.study.note(number, figures=same.figures, same_as=same.number)
            self.study.end(number, "complete", same.value)
            self._tell(number)
            return
        try:
            experiment = self._changed(number, settings)
        except ConfigError as error:
            self._fail(number, error.problem, 0.0)
            return
        run = self.run_folder(number)
        run.parent.mkdir(exist_ok=True)
        self._processes[number] = TrialProcess(number, experiment, run, self.dataset.folder, self.start)

    def _changed(self, number: int, settings: dict[str, Any]) -> Experiment:
        """Returns the experiment of a trial; the first one's is the config as it is, also where it lacks a key."""
        return self.experiment if number == 0 else with_settings(self.experiment, settings)

    def run_folder(self, number: int) -> Path:
        return self.folder / TRIALS / f"{number:04d}"

    def _watch(self) -> None:
        """Reports new evaluations of the trials that run, and those that have ended."""
        for number, process in list(self._processes.items()):
            ended = process.ended()
            hopeless, evaluations = False, process.evaluations()
            for record in evaluations:
                value = monitored(record, self.monitor, process.experiment.tasks())
                share = share_of(record, process.experiment)
                hopeless |= self.study.report(number, share, value) and share < WHOLE
            if evaluations:
                self.study.note(number, figures=_figures(evaluations[-1]), steps=evaluations[-1]["step"])
            if ended is not None:
                del self._processes[number]
                self._ended(number, process, ended)
            elif hopeless and number not in self._pruned:
                self._pruned.add(number)
                process.stop()

    def _ended(self, number: int, process: TrialProcess, ended: Ended) -> None:
        seconds = self.study.record(number).seconds + process.seconds
        if "figures" in ended.result:
            figures = {key: math.nan if value is None else value for key, value in ended.result["figures"].items()}
            value = monitored(figures, self.monitor, process.experiment.tasks())
            self.study.note(number, figures=_figures(figures), steps=ended.result["steps"], seconds=seconds)
            if not math.isfinite(value):
                if number == 0:
                    raise DataError(
                        f"trial 0, the config as it is: {self.monitor} is undefined on the validation split",
                        "set training.monitor to another metric, or give the split more rows (data.split.validation)",
                    )
                self._fail(number, f"{self.monitor} is undefined on validation", seconds)
                return
            self.study.end(number, "complete", value)
        elif number in self._pruned:
            self.study.note(number, seconds=seconds)
            self.study.end(number, "pruned")
        elif "error" in ended.result:
            error = ended.result["error"]
            if number == 0 or error["kind"] not in _OF_THE_SETTINGS:
                kind = DataError if error["kind"] == "DataError" else EnvironmentMismatch
                raise kind(f"trial {number}: {error['problem']}", error["hint"])
            self._fail(number, error["problem"], seconds)
            return
        elif ended.status == -signal.SIGKILL:
            if number == 0:  # it stays begun, so that the same command resumes it
                self.study.note(number, seconds=seconds)
                raise EnvironmentMismatch(
                    "trial 0, the config as it is, was ended by SIGKILL, probably for want of memory",
                    "free memory or lower --jobs: the same command resumes the search; for a config that needs less, "
                    "such as a smaller training.batch_size, name another folder with --run",
                )
            self._fail(number, "was ended by SIGKILL, probably for want of memory", seconds)
            return
        elif ended.status in (0, -signal.SIGTERM):  # another process stopped it; its state is saved
            self.study.note(number, seconds=seconds)
            self._start(number)
            return
        else:
            raise EnvironmentMismatch(
                f"trial {number} ended with status {ended.status}:\n{ended.tail}",
                "correct what the last line says; the same command resumes the search",
            )
        self._tell(number)

    def _fail(self, number: int, reason: str, seconds: float) -> None:
        self.study.note(number, reason=reason, seconds=seconds)
        self.study.end(number, "failed")
        self._tell(number)

    def _tell(self, number: int) -> None:
        """Shows a trial that has ended, and writes what is known."""
        record, best, records = self.study.record(number), self.study.best(), self.study.records()
        self._tidy()
        if best is not None and best.number == number:
            self._write(best, {})  # whatever ends this process leaves the best config so far
        else:
            outputs.write_trials(self.folder / outputs.TRIALS_FILE, records)
        if record.state == "failed":
            told = f"failed: {shorten(record.reason, 100)}"
        else:
            value = record.history[-1][1] if record.value is None else record.value
            ended = f", ended at {record.history[-1][0] / WHOLE:.0%}" if record.state == "pruned" else ""
            told = f"val_{self.monitor} {value:.6g}{ended}"
        against = "" if best is None else f" (best {best.value:.6g}, trial {best.number})"
        how = f"{record.seconds:.1f} s" if record.same_as is None else f"settings of trial {record.same_as}"
        self.progress.note(f"trial {number}: {told}{against}, {how}: {self._described(record)}")
        done = sum(each.state != "running" for each in records)
        figures = {} if best is None or best.value is None else {f"best_{self.monitor}": best.value}
        self.progress.advance(done, **figures)

    def _described(self, record: TrialRecord) -> str:
        changes = outputs.changes(record.settings, self.own)
        return "the config as it is" if not changes else ", ".join(f"{key} {to}" for key, _, to in changes)

    def _tidy(self) -> None:
        """Deletes the run folders of trials that have ended, except the first, the best and those of an ensemble."""
        best, records = self.study.best(), self.study.records()
        kept = {0} if best is None else {0, best.number}
        kept.update(best_trials(records, self.ensemble or 0, higher_is_better=higher_is_better(self.monitor)))
        named = named_folders(self.folder)
        for record in records:
            if record.state != "running":
                folder = self.run_folder(record.number)
                discard(folder, keep_run=record.number in kept or folder.resolve() in named)

    def _stop_all(self) -> None:
        """Has all trials save their states, and waits for them; trials that had just ended are recorded."""
        for process in self._processes.values():
            process.stop()
        while self._processes:
            time.sleep(_POLL_S)
            for number, process in list(self._processes.items()):
                ended = process.ended()
                if ended is None:
                    continue
                del self._processes[number]
                if "figures" in ended.result or number in self._pruned:
                    self._ended(number, process, ended)
                else:
                    self.study.note(number, seconds=self.study.record(number).seconds + process.seconds)

    def _lead(self, best: TrialRecord) -> Lead | None:
        """Returns how far the best trial is ahead of the config as it is."""
        first = self.study.record(0)
        if best.number == 0 or first.state != "complete":
            return None
        runs = self.run_folder(0), self.run_folder(best.number)
        return lead_of(self.folder, self.monitor, *runs, first.figures, best.number, self.dataset, self.progress)

    def _test_figures(self, best: TrialRecord) -> dict[str, float]:
        return figures_on_test(self.folder, self.run_folder(best.number), best.number, self.dataset)

    def _write(
        self,
        best: TrialRecord,
        test: dict[str, float],
        together: SearchedEnsemble | None = None,
        lead: Lead | None = None,
    ) -> None:
        records = self.study.records()
        outputs.write_trials(self.folder / outputs.TRIALS_FILE, records)
        found = outputs.Found(
            self.experiment.name, self.monitor, higher_is_better(self.monitor), self.space, self.own, tuple(records),
            best, self.study.importances(), test, together, lead,
        )  # fmt: skip
        changed = self._changed(best.number, best.settings)
        outputs.write_best(self.folder / outputs.BEST_FILE, changed, found, self.dataset.folder)
        write_page(self.folder / PAGE_FILE, found)


def _figures(record: dict[str, Any]) -> dict[str, float | None]:
    """Returns the figures among the values of a record of ``metrics.jsonl``; None in place of one that is undefined."""
    found = {
        key: each for key, each in record.items() if isinstance(each, int | float) and key not in {"step", "epoch"}
    }
    return {key: each if math.isfinite(each) else None for key, each in found.items()}

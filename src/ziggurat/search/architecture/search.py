"""Searches architectures: by a super-net, or by training one after the other; the best are trained from scratch.

Validation alone decides. The figures on the test split are computed once, for the best and for the config as it is,
after the last trial has ended. Every finished trial is in ``SEARCH/trials.json``, and checkpoints hold what runs, so
that the same command resumes a search however it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ziggurat.core.engine import check_engine
from ziggurat.core.errors import ConfigError, DivergedError, OutOfMemory
from ziggurat.core.files import locked_folder, write_json
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.metrics.names import higher_is_better
from ziggurat.parallel.agreement import on_any_rank, on_first_rank
from ziggurat.parallel.own_random import preserved_random_state
from ziggurat.parallel.world import World
from ziggurat.search.architecture.clock import Clock, Spent
from ziggurat.search.architecture.config import ArchitectureSearchConfig, read_search_config
from ziggurat.search.architecture.drawing import Drawn, draw_architectures
from ziggurat.search.architecture.feasible import Limits, equal_liking, repaired
from ziggurat.search.architecture.found import BEST_FILE, FoundArchitectures, write_best
from ziggurat.search.architecture.latency import latency_table
from ziggurat.search.architecture.page import PAGE_FILE, write_page
from ziggurat.search.architecture.records import ArchitectureTrial, best_of, read_trials, write_trials
from ziggurat.search.architecture.space.decision import chosen
from ziggurat.search.architecture.space.whole_space import WholeSpace, described
from ziggurat.search.architecture.strategies import Method, strategy_of
from ziggurat.search.architecture.supernet.loop import SuperNetTrainer
from ziggurat.search.architecture.supernet.opened import check_searchable, opened_super_net
from ziggurat.search.architecture.supernet.saving import HistoryPoint
from ziggurat.search.same_search import DAMAGE, check_same
from ziggurat.search.validation_rows import check_validation_rows
from ziggurat.training.evaluate_run import evaluate
from ziggurat.training.experiment import Experiment, as_experiment
from ziggurat.training.preparation import prepare
from ziggurat.training.process_group import pick_device, process_group
from ziggurat.training.run_folder.own_folder import check_own_folder
from ziggurat.training.signals import StopRequest
from ziggurat.training.train import train
from ziggurat.training.train_state import monitored

SETTINGS_FILE = "architecture.json"
DRAWN_FILE = "drawn.json"
TEST_FILE = "test.json"
SUPERNET, TRIALS, PREPARED = "supernet", "trials", "prepared"


@dataclass(frozen=True, slots=True)
class _StoredChoices:
    choices: dict[str, int]
    value: float | None


@dataclass(frozen=True, slots=True)
class _StoredDrawn:
    seconds: float
    history: list[HistoryPoint]
    drawn: list[_StoredChoices]
    cpu_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class _StoredTest:
    figures: dict[str, dict[str, float | None]]


@dataclass(frozen=True, slots=True)
class SearchedArchitecture:
    """How a search ended.

    Attributes:
        folder: the folder of the search.
        found: what it has found.
        signal: the signal that stopped it, if any.
        finished: whether nothing is left to do.
    """

    folder: Path
    found: FoundArchitectures
    signal: signal.Signals | None
    finished: bool


def search_architecture(
    experiment: Experiment | str | Path,
    folder: str | Path | None = None,
    *,
    config: ArchitectureSearchConfig | Path | None = None,
    method: Method = "supernet",
    trials: int | None = None,
    seconds: float | None = None,
    cpu_seconds: float | None = None,
    seed: int = 0,
    prepared: str | Path | None = None,
    stop_after: int | None = None,
    progress: Progress | None = None,
) -> SearchedArchitecture:
    """Searches an architecture that validates better within limits of costs, or resumes such a search.

    Args:
        experiment: the experiment, or its YAML file; ``training.monitor`` names the metric that decides.
        folder: the folder of the search; default: ``searches/NAME-architecture``, or ``-METHOD`` for another method.
        config: what there is to choose from, or the YAML file with it.
        method: ``supernet``; or ``random``, ``tpe`` or ``evolution``, which train one architecture after the other.
        trials: architectures that other methods than the super-net train; a search that has some goes on.
        seconds: other methods than the super-net begin no trial after so many seconds of training.
        cpu_seconds: the same in processor seconds, which do not depend on what else runs on the machine. The first
            budget that is spent ends the search.
        seed: seeds masks, draws, and the division of rows. All trainings have ``training.seed``.
        prepared: folder of the encoded dataset; default: as in :func:`~ziggurat.training.api.prepare`.
        stop_after: steps of the super-net after which to save and return.
        progress: where to show progress.

    Raises:
        ConfigError: an argument, the config or the space is not possible.
        FolderInUse: another process searches in the folder.
        RunFolderError: the folder holds something else, or another search.
        ZigguratError: the config itself cannot be trained, or the disk is full.
    """
    check_engine()
    experiment = as_experiment(experiment)
    experiment.check()
    check_searchable(experiment)
    settings = config if isinstance(config, ArchitectureSearchConfig) else read_search_config(config)
    if method != "supernet" and trials is None and seconds is None and cpu_seconds is None:
        raise ConfigError(
            f"--method {method}: trains until it is told to stop",
            "give --trials 20, --seconds 3600 or --cpu-seconds 3600",
        )
    suffix = "architecture" if method == "supernet" else method
    folder = Path("searches") / f"{experiment.name}-{suffix}" if folder is None else Path(folder)
    progress = progress or Silent()
    with contextlib.ExitStack() as stack:
        device = pick_device(experiment.training.device)
        stack.enter_context(preserved_random_state(device))
        if experiment.training.threads is not None:
            torch.set_num_threads(experiment.training.threads)
        world = stack.enter_context(process_group(device, experiment.parallel.timeout_s))
        if not world.leads:
            progress = Silent()
        values: dict[str, Any] = {
            "experiment": experiment.model_dump(mode="json"),
            "search": settings.model_dump(mode="json"),
            "method": method,
            "seed": seed,
        }
        own, shown = experiment, progress

        def open_folder() -> Path:
            check_own_folder(folder, SETTINGS_FILE, "search of architectures")
            stack.enter_context(locked_folder(folder, "searching"))
            check_same(folder / SETTINGS_FILE, values)
            dataset = prepare(own, folder=prepared, progress=shown)
            check_validation_rows(dataset)
            check_same(folder / SETTINGS_FILE, {**values, "dataset": dataset.fingerprint})
            write_json(folder / SETTINGS_FILE, {**values, "dataset": dataset.fingerprint})
            return dataset.folder

        dataset = Dataset(on_first_rank(open_folder))
        search = _Search(folder, experiment, settings, method, dataset, seed, device, progress)
        return search.run(_Budget(trials, seconds, cpu_seconds), stop_after)


@dataclass(frozen=True, slots=True)
class _Budget:
    """What a method that trains one architecture after the other may spend; None: anything."""

    trials: int | None
    seconds: float | None
    cpu_seconds: float | None

    def is_spent(self, ended: Sequence[ArchitectureTrial]) -> bool:
        spent = sum((each.spent for each in ended), Spent())
        limits = (self.trials, len(ended)), (self.seconds, spent.seconds), (self.cpu_seconds, spent.cpu_seconds)
        return any(limit is not None and value >= limit for limit, value in limits)


class _Search:
    """A search in progress, on one rank."""

    def __init__(
        self,
        folder: Path,
        experiment: Experiment,
        settings: ArchitectureSearchConfig,
        method: Method,
        dataset: Dataset,
        seed: int,
        device: torch.device,
        progress: Progress,
    ) -> None:
        self.folder, self.experiment, self.settings = folder, experiment, settings
        self.method: Method = method
        self.dataset, self.seed, self.device, self.progress = dataset, seed, device, progress
        self.leads = World.current().leads
        latency = None
        if settings.limits.milliseconds is not None:
            latency = on_first_rank(lambda: latency_table(device))
        self.space = WholeSpace(settings.space, settings.tables, experiment, dataset.schema, latency)
        self.own_costs = self.space.own_costs()
        self.limits: Limits = settings.limits.resolved(self.own_costs)
        likely = equal_liking(self.space)
        repaired(self.space, self.limits, dict.fromkeys(likely, 0), likely)  # limits that none can keep are told now
        self.monitor = experiment.training.monitor
        self.higher = higher_is_better(self.monitor)
        self.trials: list[ArchitectureTrial] = on_first_rank(lambda: read_trials(folder))
        self.history: tuple[HistoryPoint, ...] = ()
        self.supernet = Spent()
        self._signal: signal.Signals | None = None

    def run(self, budget: _Budget, stop_after: int | None) -> SearchedArchitecture:
        """Searches until the end, or until a signal."""
        done = self._train_own()
        if done:
            done = self._super_net(stop_after) if self.method == "supernet" else self._one_after_the_other(budget)
        best = best_of(self.trials, higher_is_better=self.higher)
        test = self._test_figures(best) if done and best is not None else {}
        found = FoundArchitectures(
            self.experiment.name, self.method, self.monitor, self.higher, self.space.decisions, self.limits,
            tuple(self.trials), best, test, self.history, self.supernet,
        )  # fmt: skip
        if self.leads and self.trials:
            if best is not None:
                write_best(self.folder / BEST_FILE, self.space.decoded(best.choices), found)
            write_page(self.folder / PAGE_FILE, found)
        return SearchedArchitecture(self.folder, found, self._signal, done)

    def _train_own(self) -> bool:
        """Trains the config as it is, which is trial 0; returns whether that has ended."""
        return self._train({}, self.experiment, dict(self.own_costs), 0)

    def _own_passes(self) -> int:
        """Returns the passes over the training rows that trial 0 made before it stopped, at least 1."""
        per_pass = math.ceil(self.dataset.split("train").rows / self.experiment.training.batch_size)
        return max(1, math.ceil(self.trials[0].steps / per_pass))

    def _super_net(self, stop_after: int | None) -> bool:
        drawn = self._drawn(stop_after)
        if drawn is None:
            return False
        for number, each in enumerate(drawn[: self.settings.retrained], start=1):
            if not self._train(each.choices, self.space.decoded(each.choices), self.space.costs(each.choices), number):
                return False
        return True

    def _drawn(self, stop_after: int | None) -> list[Drawn] | None:
        """Returns the architectures that were drawn from the super-net, trained first if need be; None if stopped."""
        stored = on_first_rank(lambda: self._stored_drawn())
        if stored is not None:
            self.supernet, self.history = Spent(stored.seconds, stored.cpu_seconds), tuple(stored.history)
            return [Drawn(each.choices, math.nan if each.value is None else each.value) for each in stored.drawn]
        folder = self.folder / SUPERNET
        if self.leads:
            folder.mkdir(exist_ok=True)
        on_first_rank(lambda: None)
        clock = Clock()
        with opened_super_net(self.space, self.dataset, folder, self.device) as recommender, StopRequest() as stop:
            trainer = SuperNetTrainer(
                recommender, self.space, self.limits, self.settings.supernet, self.dataset, folder, self.device,
                self.seed, self._digest(), self.progress, self._own_passes(),
            )  # fmt: skip
            if trainer.at.step:
                self.progress.note(f"{folder}: resuming at step {trainer.at.step:,} of {trainer.total_steps:,}")
            trainer.at.spent += clock.spent()
            trainer.train(stop, stop_after)
            self.history, self.supernet = tuple(trainer.at.history), trainer.at.spent
            clock, drawn = Clock(), None
            if trainer.finished:
                drawn = draw_architectures(trainer, self.limits, self.settings.drawn, self.dataset, stop, self.progress)
            self._signal = stop.signal
            if drawn is None:
                return None
            # Every rank keeps the first one's clock: it decides nothing, but is in what all return.
            self.supernet = on_first_rank(lambda: self.supernet + clock.spent())
        if self.leads:
            values = {
                "seconds": self.supernet.seconds,
                "cpu_seconds": self.supernet.cpu_seconds,
                "history": [{name: getattr(each, name) for name in HistoryPoint.__slots__} for each in self.history],
                "drawn": [{"choices": each.choices, "value": _finite(each.value)} for each in drawn],
            }
            write_sealed_json(self.folder / DRAWN_FILE, values)
        return drawn

    def _stored_drawn(self) -> _StoredDrawn | None:
        path = self.folder / DRAWN_FILE
        return declared(_StoredDrawn, read_sealed_json(path, DAMAGE), path, DAMAGE) if path.exists() else None

    def _one_after_the_other(self, budget: _Budget) -> bool:
        strategy = strategy_of(
            self.method, self.space, self.limits, self.seed, self.folder, higher_is_better=self.higher
        )
        while True:
            ended = [each for each in self.trials if each.number and each.state != "running"]
            if budget.is_spent(ended):
                return True
            number = len(ended) + 1
            begun = next((each for each in self.trials if each.number == number), None)
            choices = on_first_rank(lambda ended=ended: strategy.propose(ended)) if begun is None else begun.choices
            if not self._train(choices, self.space.decoded(choices), self.space.costs(choices), number):
                return False

    def _train(self, choices: dict[str, int], experiment: Experiment, costs: Mapping[Any, float], number: int) -> bool:
        """Trains an architecture from scratch, unless that was done; returns False if a signal stopped it."""
        known = next((each for each in self.trials if each.number == number), None)
        if known is not None and known.state != "running":
            return True
        trial = known or ArchitectureTrial(number, choices, dict(costs), "running", None, {}, 0, 0.0)
        self._keep(trial)
        clock = Clock()
        try:
            outcome = train(
                experiment,
                run_folder=self.folder / TRIALS / f"{number:04d}",
                prepared=self._prepared(experiment),
                splits=("validation",),
                progress=self.progress,
            )
        except (DivergedError, OutOfMemory, ConfigError) as error:
            if number == 0:
                raise
            self._keep(replace(self._timed(trial, clock), state="failed", reason=error.problem))
            return True
        if outcome.results is None:
            self._signal = outcome.signal
            self._keep(self._timed(trial, clock))
            return False
        figures = outcome.results["figures"]["validation"]
        value = monitored(figures, self.monitor, experiment.tasks())
        ended = replace(
            self._timed(trial, clock), state="complete" if math.isfinite(value) else "failed", value=_finite(value),
            figures={name: _finite(each) for name, each in figures.items()}, steps=outcome.results["steps"],
            reason="" if math.isfinite(value) else f"{self.monitor} is undefined",
        )  # fmt: skip
        self._keep(ended)
        self._signal = outcome.signal
        what = "the config as it is" if not number else described(chosen(self.space.decisions, choices))
        self.progress.note(f"trial {number}: val_{self.monitor} {value:.6g}, {ended.seconds:.1f} s: {what}")
        self._tidy()
        return not on_any_rank(outcome.signal is not None)

    def _tidy(self) -> None:
        """Deletes datasets that were prepared for trials that are not the best one."""
        best = best_of(self.trials, higher_is_better=self.higher)
        if not self.leads or best is None:
            return
        kept = self._prepared(self.space.decoded(best.choices))
        for folder in (self.folder / PREPARED).glob("*"):
            if folder != kept:
                shutil.rmtree(folder, ignore_errors=True)

    def _timed(self, trial: ArchitectureTrial, clock: Clock) -> ArchitectureTrial:
        """Returns a trial with what it took by now, by the first rank's clock: budgets must end on all ranks alike."""
        spent = on_first_rank(lambda: trial.spent + clock.spent())
        return replace(trial, seconds=spent.seconds, cpu_seconds=spent.cpu_seconds)

    def _keep(self, trial: ArchitectureTrial) -> None:
        self.trials = sorted(
            [each for each in self.trials if each.number != trial.number] + [trial], key=lambda each: each.number
        )
        if self.leads:
            write_trials(self.folder, self.trials)

    def _prepared(self, experiment: Experiment) -> Path:
        """Returns the folder of the dataset of an experiment; one with hashed tables has other ids."""
        if experiment.features == self.experiment.features:
            return self.dataset.folder
        encoded = json.dumps([each.model_dump(mode="json") for each in experiment.features], sort_keys=True)
        return self.folder / PREPARED / hashlib.sha256(encoded.encode()).hexdigest()[:16]

    def _test_figures(self, best: ArchitectureTrial) -> dict[int, dict[str, float]]:
        """Returns the figures on the test split of the best trial and of trial 0; they are computed once."""
        if not self.dataset.split("test").rows:
            return {}
        path = self.folder / TEST_FILE
        known = on_first_rank(lambda: _stored_test(path)).figures
        for trial in (self.trials[0], best):
            if str(trial.number) not in known:
                experiment = self.space.decoded(trial.choices) if trial.number else self.experiment
                run = self.folder / TRIALS / f"{trial.number:04d}"
                figures = evaluate(run, "test", prepared=self._prepared(experiment)).compute()
                known[str(trial.number)] = {name: _finite(value) for name, value in figures.items()}
        if self.leads:
            write_sealed_json(path, {"figures": known})
        wanted = {0, best.number}
        return {
            int(number): {name: math.nan if value is None else value for name, value in figures.items()}
            for number, figures in known.items()
            if int(number) in wanted
        }

    def _digest(self) -> str:
        values = [self.experiment.model_dump(mode="json"), self.settings.model_dump(mode="json"), self.seed]
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _stored_test(path: Path) -> _StoredTest:
    return declared(_StoredTest, read_sealed_json(path, DAMAGE), path, DAMAGE) if path.exists() else _StoredTest({})


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None

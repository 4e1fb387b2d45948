"""The study of a search: which settings come next, which trial has no prospects, and what is known, on disk.

Optuna's tree-structured Parzen estimator (Bergstra et al., "Algorithms for Hyper-Parameter Optimization", NIPS 2011)
chooses settings; asynchronous successive halving (Li et al., "A System for Massively Parallel Hyperparameter Tuning",
arXiv 1810.05934) ends trials. Optuna's journal holds every step of it. One process at a time opens a study: it holds
the lock of the search's folder.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ziggurat.core.errors import EnvironmentMismatch, RunFolderError
from ziggurat.search.space import Space

try:
    import optuna
    from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
    from optuna.trial import FrozenTrial, Trial, TrialState
except ModuleNotFoundError as error:
    raise EnvironmentMismatch(
        "a search needs Optuna, which is not installed", "pip install 'ziggurat[search]'"
    ) from error

State = Literal["running", "complete", "pruned", "failed"]

WHOLE = 1000
"""The share of a training that is done is told in units of a thousandth."""
REDUCTION = 3
"""Of the trials that reach a rung of successive halving, one in so many goes on."""
RANDOM_TRIALS = 8
"""Trials whose settings are random, before the estimator chooses."""
_COMPARED = 4
"""How many trials have reached the first rung before one of them is ended."""

_STATES: dict[TrialState, State] = {
    TrialState.RUNNING: "running",
    TrialState.WAITING: "running",
    TrialState.COMPLETE: "complete",
    TrialState.PRUNED: "pruned",
    TrialState.FAIL: "failed",
}


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """What is known of a trial.

    Attributes:
        number: its number; 0 is the config as it is.
        state: ``running`` also if it was stopped and is to be resumed.
        settings: its values for the keys of the space.
        value: the monitored metric on validation, of its best checkpoint; None unless it is complete.
        history: (share of the training in thousandths, best value so far) at each evaluation.
        figures: the figures on validation of the best checkpoint; of a pruned trial, those of its last evaluation. None
            is undefined.
        steps: optimizer steps done.
        seconds: wall-clock of the processes that trained it, without those that were killed.
        reason: why it failed.
        same_as: the number of the complete trial with the same settings, whose value it has without a training.
    """

    number: int
    state: State
    settings: dict[str, Any]
    value: float | None
    history: tuple[tuple[int, float], ...]
    figures: dict[str, float | None]
    steps: int
    seconds: float
    reason: str
    same_as: int | None = None


class _NoLock(JournalFileOpenLock):
    """The folder's lock suffices; Optuna's own would stay behind after SIGKILL, and be waited for."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class Study:
    """Opens or begins a study.

    Args:
        path: the journal.
        space: the possible values.
        own: the values of the config itself, which the first trial has.
        higher_is_better: the direction of the monitored metric.
        first_share: the share of the training after which the first rung of successive halving stands.
        seed: seeds the sampler; with one process at a time, equal seeds give equal settings.
        random_trials: trials whose settings are random, before the estimator chooses.

    Raises:
        RunFolderError: the journal is damaged, not only cut short by a kill.
    """

    def __init__(
        self,
        path: Path,
        space: Space,
        own: Mapping[str, Any],
        *,
        higher_is_better: bool,
        first_share: int,
        seed: int,
        random_trials: int = RANDOM_TRIALS,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        _drop_incomplete_line(path)
        self.space, self._own, self._seed, self._higher = space, dict(own), seed, higher_is_better
        self._first_share, self._random_trials = first_share, random_trials
        try:
            storage = optuna.storages.JournalStorage(JournalFileBackend(str(path), _NoLock(str(path))))
            self._study = optuna.create_study(
                storage=storage,
                pruner=optuna.pruners.SuccessiveHalvingPruner(min_resource=first_share, reduction_factor=REDUCTION),
                study_name="search",
                load_if_exists=True,
                direction="maximize" if higher_is_better else "minimize",
            )
        except (ValueError, KeyError, TypeError) as error:
            raise RunFolderError(
                f"{path}: is damaged ({error})", "restore it from a copy, or search in another folder with --run"
            ) from None
        self._running: dict[int, Trial] = {}
        if not self._study.trials:
            numbers = {key: space[key].number(value) for key, value in own.items()}
            self._study.enqueue_trial({key: number for key, number in numbers.items() if number is not None})

    def unfinished(self) -> list[int]:
        """Returns the numbers of trials that were begun and not ended, and takes them up."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in self._running:
                self._study.sampler = self._sampler(trial.number)
                self._running[trial.number] = Trial(self._study, trial._trial_id)  # pyright: ignore[reportPrivateUsage]
        return sorted(self._running)

    def ask(self) -> int:
        """Begins a trial and returns its number."""
        number = len([each for each in self._study.trials if each.state != TrialState.WAITING])
        self._study.sampler = self._sampler(number)
        trial = self._study.ask()
        self._running[trial.number] = trial
        return trial.number

    def _sampler(self, number: int) -> optuna.samplers.TPESampler:
        """Returns a sampler for one trial: it is not stored, and draws after a resumption what it would have drawn."""
        seed = (self._seed * 1_000_003 + number) % 2**32
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=self._random_trials)

    def settings(self, number: int) -> dict[str, Any]:
        """Returns the values of a trial that runs."""
        trial = self._running[number]
        if number == 0:
            known = {
                key: self.space[key] for key, value in self._own.items() if self.space[key].number(value) is not None
            }
            for key, dimension in known.items():
                dimension.suggest(trial, key)
            settings = self._own
        else:
            settings = {key: dimension.suggest(trial, key) for key, dimension in self.space.items()}
        trial.set_user_attr("settings", settings)
        return settings

    def report(self, number: int, share: int, value: float) -> bool:
        """Records the monitored metric after a share of the training; returns whether the trial is to end.

        A value that is not finite, or a share that is not after the last one, is not recorded. The first trial is
        trained to its end.
        """
        trial, history = self._running[number], self.record(number).history
        if math.isfinite(value) and (not history or share > history[-1][0]):
            seen = [each for _, each in history]
            trial.report(max([*seen, value]) if self._higher else min([*seen, value]), share)
        if not self.record(number).history:
            return False
        hopeless = trial.should_prune()  # asked of the first trial as well: the others are compared with it
        reached = [
            each for each in self._study.get_trials(deepcopy=False) if (each.last_step or 0) >= self._first_share
        ]
        return hopeless and number != 0 and len(reached) >= _COMPARED

    def note(self, number: int, **attributes: Any) -> None:
        """Records figures, steps, seconds or reason of a trial that runs."""
        for name, value in attributes.items():
            self._running[number].set_user_attr(name, value)

    def end(self, number: int, state: Literal["complete", "pruned", "failed"], value: float | None = None) -> None:
        """Ends a trial."""
        states = {"complete": TrialState.COMPLETE, "pruned": TrialState.PRUNED, "failed": TrialState.FAIL}
        self._study.tell(self._running.pop(number), value, states[state])

    def record(self, number: int) -> TrialRecord:
        return _record(self._study.trials[number])

    def records(self) -> list[TrialRecord]:
        """Returns all trials that have begun, by number."""
        return [_record(each) for each in self._study.trials if "settings" in each.user_attrs]

    def best(self) -> TrialRecord | None:
        """Returns the complete trial with the best value, the first of equal ones; None if there is none."""
        complete = [each for each in self.records() if each.value is not None]
        sign = -1 if self._higher else 1
        return min(complete, key=lambda each: (sign * (each.value or 0.0), each.number), default=None)

    def importances(self) -> dict[str, float]:
        """Returns key -> its share of the variance of the complete trials' values; empty if they are too few.

        By fANOVA (Hutter et al., "An Efficient Approach for Assessing Hyperparameter Importance", ICML 2014).
        The config itself is left out where a value of it is not in the space.
        """
        every = self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        complete = [each for each in every if self.space.keys() <= each.params.keys()]
        if len(complete) < _COMPARED or len({each.value for each in complete}) == 1:
            return {}
        study = self._study
        if len(complete) < len(every):
            study = optuna.create_study(direction=study.direction)
            study.add_trials(complete)
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        return dict(optuna.importance.get_param_importances(study, evaluator=evaluator))


def _record(trial: FrozenTrial) -> TrialRecord:
    attributes = trial.user_attrs
    return TrialRecord(
        number=trial.number,
        state=_STATES[trial.state],
        settings=attributes.get("settings", {}),
        value=trial.value if trial.state == TrialState.COMPLETE else None,
        history=tuple(sorted(trial.intermediate_values.items())),
        figures=attributes.get("figures", {}),
        steps=attributes.get("steps", 0),
        seconds=attributes.get("seconds", 0.0),
        reason=attributes.get("reason", ""),
        same_as=attributes.get("same_as"),
    )


def _drop_incomplete_line(path: Path) -> None:
    """Cuts off a last line that a kill left incomplete; another one would otherwise be appended to it."""
    if not path.exists():
        return
    with path.open("r+b") as file:
        content = file.read()
        if content and not content.endswith(b"\n"):
            file.truncate(content.rfind(b"\n") + 1)
            os.fsync(file.fileno())

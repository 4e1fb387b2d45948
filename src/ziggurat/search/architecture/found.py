"""What a search of architectures has found, as values and as the config file of the best."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ziggurat.core.files import atomic_file
from ziggurat.metrics.names import ALL_METRICS, base_name
from ziggurat.search.architecture.clock import NOTHING, Spent
from ziggurat.search.architecture.feasible import Limits
from ziggurat.search.architecture.records import ArchitectureTrial
from ziggurat.search.architecture.space.decision import Decision, chosen
from ziggurat.search.architecture.strategies import Method
from ziggurat.search.architecture.supernet.saving import HistoryPoint
from ziggurat.training.experiment import Experiment, as_yaml

BEST_FILE = "best.yaml"


@dataclass(frozen=True, slots=True)
class FoundArchitectures:
    """What a search has found so far.

    Attributes:
        name: the name of the experiment.
        method: how it was searched.
        monitor: the metric that decides.
        higher_is_better: its direction.
        decisions: the decisions.
        limits: the limits of costs.
        trials: architectures that were trained from scratch; number 0 is the config as it is.
        best: the best of them by validation, without number 0; None if none is complete.
        test: number -> figures on the test split, of the best and of number 0; empty before the search is finished.
        history: of the super-net; empty for other methods.
        supernet: what the super-net and ranking what was drawn from it took.
    """

    name: str
    method: Method
    monitor: str
    higher_is_better: bool
    decisions: tuple[Decision, ...]
    limits: Limits
    trials: tuple[ArchitectureTrial, ...]
    best: ArchitectureTrial | None
    test: dict[int, dict[str, float]] = field(default_factory=dict[int, dict[str, float]])
    history: tuple[HistoryPoint, ...] = ()
    supernet: Spent = NOTHING

    @property
    def own(self) -> ArchitectureTrial | None:
        """Trial 0, the config as it is, which is trained first; None before that has begun."""
        return self.trials[0] if self.trials else None

    @property
    def search(self) -> Spent:
        """What the whole search took: the super-net, if there is one, and all trials but the config as it is."""
        return sum((each.spent for each in self.trials if each.number), self.supernet)

    @property
    def trainings(self) -> float | None:
        """The search's processor time in trainings of the config as it is; None before that is trained."""
        own = self.own
        if own is None or own.state != "complete" or not own.cpu_seconds:
            return None
        return self.search.cpu_seconds / own.cpu_seconds

    @property
    def keeps_config(self) -> str:
        """Says that no architecture validates better than the config as it is; empty if one does, or none is known."""
        best, own = self.best, self.own
        if best is None or best.value is None or own is None or own.value is None:
            return ""
        if best.value > own.value if self.higher_is_better else best.value < own.value:
            return ""
        return (
            "No architecture that was found validates better than the config as it is: "
            f"{self.monitor} {own.value:.6g} of the config, {best.value:.6g} of the best one found. Keep the config."
        )


def write_best(path: Path, experiment: Experiment, found: FoundArchitectures) -> None:
    """Writes the config of the best architecture, atomically, with comments that say how it was found.

    Its name ends in ``-architecture``, so that its run folder is neither that of the config that the search began with
    nor that of a search of hyperparameters.
    """
    assert found.best is not None
    best, own = found.best, found.trials[0]
    comments = [
        f"Found by `ziggurat search architecture` ({found.method}): trial {best.number} of {len(found.trials) - 1}.",
        f"Validation {found.monitor}: {best.value:.6g}; of the config as it was: {_value(own)}.",
        f"Costs: {_costs(best)}; of the config as it was: {_costs(own)}.",
    ]
    if found.keeps_config:
        comments.insert(0, found.keeps_config)
    comments += [f"  {name}: {value}" for name, value in chosen(found.decisions, best.choices).items()]
    if best.number in found.test:
        judged = {
            name: value
            for name, value in found.test[best.number].items()
            if ALL_METRICS[base_name(name)].better != "neither"
        }
        figures = ", ".join(f"{name} {value:.6g}" for name, value in judged.items())
        comments.append(f"Test, computed once, after the choice: {figures}")
    comments.append(f"Train it: ziggurat train {path}")
    values = {**experiment.model_dump(mode="json"), "name": f"{found.name}-architecture"}
    with atomic_file(path) as temporary:
        temporary.write_text("".join(f"# {line}\n" for line in comments) + as_yaml(values), encoding="utf-8")


def _value(trial: ArchitectureTrial) -> str:
    return trial.state if trial.value is None else f"{trial.value:.6g}"


def _costs(trial: ArchitectureTrial) -> str:
    return ", ".join(f"{name} {value:,.6g}" for name, value in trial.costs.items())

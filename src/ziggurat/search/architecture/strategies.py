"""Searches that train one architecture after the other: random search, regularised evolution, and TPE.

They stand beside the super-net, over the same space and within the same limits, to be compared at equal compute. A
strategy is a function of the trials so far and a seed, so that a search that was stopped goes on as if it had not been.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from ziggurat.search.architecture.feasible import Limits, drawn_within, equal_liking, keeps, repaired, uniform_draw
from ziggurat.search.architecture.records import ArchitectureTrial
from ziggurat.search.architecture.space.whole_space import WholeSpace

if TYPE_CHECKING:
    from ziggurat.search.study import Study

Method = Literal["supernet", "random", "tpe", "evolution"]

_RANDOM, _EVOLUTION, _FIRST_OF_EVOLUTION, _FIRST_OF_TPE = 11, 12, 13, 14
"""Streams of random numbers: no method begins with another one's architectures."""
POPULATION, TOURNAMENT = 4, 2
"""Architectures that are alive in evolution, and how many of them compete to be the parent of the next one: few, as a
search of architectures has ten trainings rather than a thousand."""
RANDOM_TRIALS = 4
"""Trials of TPE before its estimator chooses, for the same reason."""
_DRAWS = 1_000


class Strategy(Protocol):
    """Proposes the next architecture."""

    def propose(self, trials: Sequence[ArchitectureTrial]) -> dict[str, int]:
        """Returns the architecture that follows the trials so far; the config as it is is not among them."""
        ...


class RandomSearch:
    """Draws each choice with equal probability, anew until the limits are kept."""

    def __init__(self, space: WholeSpace, limits: Limits, seed: int, stream: int = _RANDOM) -> None:
        self._space, self._limits, self._seed, self._stream = space, limits, seed, stream

    def propose(self, trials: Sequence[ArchitectureTrial]) -> dict[str, int]:
        draw = uniform_draw(self._space, self._seed, self._stream)
        return drawn_within(self._space, self._limits, draw, equal_liking(self._space), _DRAWS * len(trials))


class Evolution:
    """Regularised evolution: the best of a few of the youngest architectures is changed in one decision.

    Source: Real et al., "Regularized Evolution for Image Classifier Architecture Search", arXiv 1802.01548, algorithm
    1: the oldest dies. A change that exceeds a limit is drawn again.
    """

    def __init__(self, space: WholeSpace, limits: Limits, seed: int, *, higher_is_better: bool) -> None:
        self._space, self._limits, self._seed = space, limits, seed
        self._sign = -1 if higher_is_better else 1
        self._random = RandomSearch(space, limits, seed, _FIRST_OF_EVOLUTION)

    def propose(self, trials: Sequence[ArchitectureTrial]) -> dict[str, int]:
        if len(trials) < POPULATION:
            return self._random.propose(trials)
        generator = np.random.default_rng([self._seed, _EVOLUTION, len(trials)])
        alive = [each for each in trials[-POPULATION:] if each.value is not None]
        if not alive:
            return self._random.propose(trials)
        places = generator.permutation(len(alive))[:TOURNAMENT]
        parent = min((alive[place] for place in places), key=lambda each: self._sign * (each.value or 0.0))
        open_decisions = [each for each in self._space.decisions if each.is_open]
        child = dict(parent.choices)
        for _ in range(_DRAWS if open_decisions else 0):
            decision = open_decisions[int(generator.integers(len(open_decisions)))]
            step = 1 + int(generator.integers(len(decision.choices) - 1))
            child = {**parent.choices, decision.name: (parent.choices[decision.name] + step) % len(decision.choices)}
            if keeps(self._space, child, self._limits):
                return child
        return repaired(self._space, self._limits, child, equal_liking(self._space))


@dataclass(frozen=True, slots=True)
class _Proposed:
    """A proposal of a study.

    Attributes:
        number: its number there; None: the study proposed nothing within the limits.
        architecture: what is to be trained.
    """

    number: int | None
    architecture: dict[str, int]


class ParzenEstimator:
    """The hyperparameter search's study over the decisions: a tree-structured Parzen estimator.

    What it proposes beyond the limits is told to it as failed, and not trained. It can be made anew from the trials, as
    after a search was stopped.

    Raises:
        EnvironmentMismatch: Optuna is not installed.
    """

    def __init__(self, space: WholeSpace, limits: Limits, seed: int, folder: Path, *, higher_is_better: bool) -> None:
        from ziggurat.search.dimension import Choice
        from ziggurat.search.study import Study

        self._space, self._limits = space, limits
        self._open = [each for each in space.decisions if each.is_open]
        self._words = {each.name: [str(value) for value in each.choices] for each in self._open}
        dimensions = {each.name: Choice(tuple(self._words[each.name])) for each in self._open}
        first = RandomSearch(space, limits, seed, _FIRST_OF_TPE).propose([])
        self._path = folder / "study.journal"
        self._make = lambda: Study(
            self._path, dict(dimensions), {name: words[first[name]] for name, words in self._words.items()},
            higher_is_better=higher_is_better, first_share=1000, seed=seed, random_trials=RANDOM_TRIALS,
        )  # fmt: skip
        self._study: Study | None = None
        self._told = 0
        self._proposed: _Proposed | None = None

    def propose(self, trials: Sequence[ArchitectureTrial]) -> dict[str, int]:
        if self._study is None or len(trials) < self._told:
            self._path.unlink(missing_ok=True)
            self._study, self._told, self._proposed = self._make(), 0, None
        while True:
            proposed = self._proposed or self._propose(self._study)
            if self._told == len(trials):
                self._proposed = proposed
                return dict(proposed.architecture)
            self._tell(self._study, proposed, trials[self._told])
            self._told, self._proposed = self._told + 1, None

    def _propose(self, study: Study) -> _Proposed:
        """Returns the next architecture within the limits; after many that are not, the last one is changed."""
        architecture: dict[str, int] = {}
        for _ in range(_DRAWS):
            number, architecture = self._ask()
            if keeps(self._space, architecture, self._limits):
                return _Proposed(number, architecture)
            study.end(number, "failed")
        return _Proposed(None, repaired(self._space, self._limits, architecture, equal_liking(self._space)))

    def _tell(self, study: Study, proposed: _Proposed, trial: ArchitectureTrial) -> None:
        """Tells the study what a proposal was worth; one that was changed is none of its own, and is not told."""
        if proposed.number is None:
            return
        if trial.value is None or trial.choices != proposed.architecture:
            study.end(proposed.number, "failed")
        else:
            study.end(proposed.number, "complete", trial.value)

    def _ask(self) -> tuple[int, dict[str, int]]:
        assert self._study is not None
        number = self._study.ask()
        settings = self._study.settings(number)
        choices = {name: words.index(settings[name]) for name, words in self._words.items()}
        return number, {each.name: choices.get(each.name, 0) for each in self._space.decisions}


def strategy_of(
    method: Method, space: WholeSpace, limits: Limits, seed: int, folder: Path, *, higher_is_better: bool
) -> Strategy:
    """Returns the strategy of a method that trains one architecture after the other."""
    if method == "random":
        return RandomSearch(space, limits, seed)
    if method == "evolution":
        return Evolution(space, limits, seed, higher_is_better=higher_is_better)
    return ParzenEstimator(space, limits, seed, folder, higher_is_better=higher_is_better)

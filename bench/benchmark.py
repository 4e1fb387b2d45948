"""A benchmark: a claim, the figures that would support it, and the function that measures them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

_SIGNS = {"at least": "≥", "more than": ">", "at most": "≤"}


@dataclass(frozen=True, slots=True)
class Target:
    """The bound that a figure has to reach: its judged statistic must be at least, more than or at most this."""

    bound: float
    direction: Literal["at least", "more than", "at most"] = "at least"

    def holds(self, value: float) -> bool:
        """Returns whether a value reaches the bound up to rounding: 100·(1 − 800/1000) is 19.999999999999996."""
        if self.direction == "more than":
            return value > self.bound and not math.isclose(value, self.bound, rel_tol=1e-12)
        is_there = value >= self.bound if self.direction == "at least" else value <= self.bound
        return is_there or math.isclose(value, self.bound, rel_tol=1e-12)

    def margin(self, value: float) -> float:
        """Returns the factor by which a value clears the bound; below 1 it falls short. For a bound of 0, which has no
        multiples, it is 1 plus the distance."""
        if self.bound == 0:
            return 1 - value if self.direction == "at most" else 1 + value
        if self.direction != "at most":
            return value / self.bound
        return self.bound / value if value > 0 else math.inf

    def text(self, unit: str) -> str:
        return f"{_SIGNS[self.direction]} {_digits(self.bound, 5)}{_spaced(unit)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured quantity with all its samples; judged by their median, or by their mean if the claim is about it.

    Attributes:
        name: unique in its benchmark; the key of its target. On a board ``model.figure``.
        unit: ``rows/s``, ``x``, ``s``, ``GiB``, ...
        samples: one value a round or a seed, in order.
        note: the explanation of the figure for readers.
        statistic: the statistic of the samples that is judged.
    """

    name: str
    unit: str
    samples: tuple[float, ...]
    note: str = ""
    statistic: Literal["median", "mean"] = "median"

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def value(self) -> float:
        """The statistic that is judged."""
        return self.median if self.statistic == "median" else statistics.fmean(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """The first and third quartile of the samples."""
        if len(self.samples) < 2:
            return self.median, self.median
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return low, high

    def to_json(self) -> dict[str, Any]:
        low, high = self.spread
        return {
            "name": self.name,
            "unit": self.unit,
            "median": self.median,
            "low": low,
            "high": high,
            "samples": list(self.samples),
            "note": self.note,
            **({"mean": self.value} if self.statistic == "mean" else {}),
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Figure:
        statistic: Literal["median", "mean"] = "mean" if "mean" in values else "median"
        return cls(values["name"], values["unit"], tuple(values["samples"]), values["note"], statistic)


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a run of a benchmark.

    Attributes:
        figures: the figures, in the order of the table.
        warmups, repeats: discarded and measured rounds per figure.
        notes: the explanations of data and method, including what was not timed.
        versions: other programs that took part -> their versions (``deepctr-torch`` -> ``0.3.0``).
        cases: a table of the single cases from which the figures were computed, header first.
    """

    figures: tuple[Figure, ...]
    warmups: int
    repeats: int
    notes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    cases: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Context:
    """The runner's settings for a benchmark.

    Attributes:
        quick: whether this is a smoke run of seconds on tiny inputs, whose figures mean nothing.
        data: the folder of real data given with ``--data``, or None.
        cache: a folder for generated inputs, which a later run may reuse.
        say: prints a line of progress.
    """

    quick: bool
    data: Path | None
    cache: Path
    say: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A named, repeatable measurement that backs a claim.

    Attributes:
        name: on the command line and in the results folder.
        claim: one sentence that the figures prove or refute.
        targets: figure name -> what it has to reach.
        depends_on: the sources of the result, relative to the repository: the benchmark's own Python file, the commands
            that it runs, and files other than Python (data, C). Imports of Python files are followed
            (:mod:`bench.sources`).
        run: measures.
        layout: ``list``: a line a figure; ``board``: a line a model, a column a figure; ``law``: as ``list``, but
            figures named ``model@size`` are points of curves, drawn with their laws and left out of the table;
            ``ranks``: as ``list``, but figures named ``group:method@set`` are left out of the table, and their ranks
            are drawn.
        missing: a function that returns what this machine lacks to run the benchmark, or None; a smoke run is skipped
            if it lacks something.
        data_targets: targets of figures of the real data that ``--data`` has; each counts if its figure was measured.
    """

    name: str
    claim: str
    targets: Mapping[str, Target]
    depends_on: tuple[str, ...]
    run: Callable[[Context], Result]
    layout: Literal["list", "board", "law", "ranks"] = "list"
    missing: Callable[[], str | None] = lambda: None
    data_targets: Mapping[str, Target] = field(default_factory=dict[str, Target])

    def targets_of(self, figures: Sequence[Figure]) -> dict[str, Target]:
        """Returns the targets that measured figures are judged by."""
        measured = {figure.name for figure in figures}
        return {**self.targets, **{name: each for name, each in self.data_targets.items() if name in measured}}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether all targets hold, and the figure that clears its target by the smallest factor."""

    holds: bool
    figure: str
    target: str


def judge(targets: Mapping[str, Target], figures: tuple[Figure, ...]) -> Verdict:
    """Compares figures with targets; a target whose figure is missing falls short.

    Args:
        targets: figure name -> target; at least one.
        figures: the measured figures.
    """
    assert targets, "a benchmark without a target backs no claim"
    measured = {figure.name: figure for figure in figures}
    missing = [name for name in targets if name not in measured]
    if missing:
        return Verdict(False, f"{', '.join(missing)} not measured", targets[missing[0]].text("").strip())
    tightest = min(targets, key=lambda name: targets[name].margin(measured[name].value))
    figure, target = measured[tightest], targets[tightest]
    holds = all(target.holds(measured[name].value) for name, target in targets.items())
    return Verdict(
        holds,
        f"{tightest} {_digits(figure.value, 3 if figure.statistic == 'median' else 5)}{_spaced(figure.unit)}",
        target.text(figure.unit),
    )


def number(value: float) -> str:
    """Formats a number with three significant digits, or from 1000 on without decimals: 0.85, 1.2, 41,203."""
    return _digits(value, 3)


def _digits(value: float, digits: int) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def _spaced(unit: str) -> str:
    if not unit:
        return ""
    return "×" if unit == "x" else f" {unit}"

"""Whether the config that ``ziggurat init`` writes, unchanged, beats a tuned LightGBM and logistic regression."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.quality.board import ROOT
from bench.quality.collection.sets import COLLECTION, LabelledLog
from bench.quality.default_trial import MEMBERS, Spec, run
from bench.quality.stand_in import stand_in
from bench.resumable_cases import ResumableCases, kept_in_repository
from ziggurat.cli.init import draft_config
from ziggurat.core.errors import EnvironmentMismatch

SEEDS = (0, 1, 2)
TRIALS, SEARCHED_TRIALS = 20, 30
ENOUGH_POSITIVES = 200
MEASURED = "version 1"
"""What the outcomes of :mod:`bench.quality.default_trial` mean. A case is measured again where ``init`` writes another
config, one of the baselines where it writes other columns; golden losses hold that the same config trains the same
model at other commits."""
_HEADER = (
    "log", "half", "rows", "ours: NE", "LightGBM NE", "logistic regression NE", "ours: AUC", "LightGBM AUC",
    "logistic regression AUC", "calibration", "ours s", "one fit s",
)  # fmt: skip
_SEARCHED_HEADER = (*_HEADER[:-2], "ensemble NE", "ensemble AUC")

Outcome = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a label.

    Attributes:
        ours: the outcomes of our model, one per seed.
        theirs: those of the baselines.
        seconds: those of our model, and of one fit of LightGBM; None where they were not measured.
    """

    ours: list[Outcome]
    theirs: list[Outcome]
    seconds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class _Cases:
    """The logs' outcomes, from earlier runs of the benchmark where there are any."""

    context: Context
    stored: ResumableCases

    def outcomes(self, log: LabelledLog, kind: str, **what: Any) -> list[Outcome]:
        """Returns the outcome of each seed.

        Args:
            log: the log.
            kind: a name for what is measured.
            **what: values of the :class:`Spec`.

        Raises:
            EnvironmentMismatch: the process ended with another status than 0; the message has the end of its errors.
        """
        folder = self.context.cache / "out_of_the_box"
        files = [str(path) for path in log.files(folder / "logs", self.context.data)]
        spec = Spec(files, log.label, list(SEEDS), len(os.sched_getaffinity(0)), **what)
        config = draft_config(files, log.label).replace(str(folder), "")
        lines = config.partition("\nembeddings:")[0].splitlines()
        columns = "\n".join(line for line in lines if "kind: crossed" not in line)  # the baselines do not get these
        given = f"columns {_digest(columns)}" if spec.baselines else f"config {_digest(config)}"
        case = f"{log.name}: {kind}, {spec.threads} threads, {given}"
        return self.stored.get(case, lambda: _process(log, spec))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _process(log: LabelledLog, spec: Spec) -> list[Outcome]:
    with tempfile.TemporaryDirectory(prefix="out-of-the-box-") as scratch:
        given, out = Path(scratch) / "spec.json", Path(scratch) / "outcomes.json"
        given.write_text(json.dumps(asdict(spec)), encoding="utf-8")
        command = [sys.executable, "-m", "bench.quality.default_trial", str(given), str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(spec.threads)}
        if spec.timed is None:  # beside other work, threads that spin while they wait take a hundred times as long
            environment["OMP_WAIT_POLICY"] = "PASSIVE"
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        if not ended.returncode:
            return json.loads(out.read_text(encoding="utf-8"))["outcomes"]
    tail = "\n".join(ended.stderr.splitlines()[-15:])
    raise EnvironmentMismatch(f"{log.name}: ended with status {ended.returncode}:\n{tail}", "see the errors above")


def _run(context: Context, trials: int = TRIALS, search: int = 0) -> Result:
    if context.quick:
        return _quick(context, search)
    cases = _Cases(context, ResumableCases(kept_in_repository("out_of_the_box"), MEASURED))
    found: dict[str, Measured] = {}
    halves: dict[str, str] = {}
    for log in COLLECTION:
        kind = f"the best of {search} trials beyond noise, and an ensemble" if search else "init"
        ours = cases.outcomes(log, kind, search=search)
        theirs = cases.outcomes(log, f"LightGBM of {trials} trials", baselines=True, trials=trials)
        for name, both in _by_label(log.name, ours, theirs):
            found[name], halves[name] = both, log.half
            context.say(" | ".join((name, *_case(name, log.half, both)[3:6])))
    if not search:
        for log in COLLECTION:  # nothing may run beside these: they come last
            found |= _with_seconds(log, cases, found)
    table = [_case(name, halves[name], measured) for name, measured in found.items()]
    notes = (*_notes(trials, search), cases.stored.commits)
    return Result(_figures(found), 0, len(SEEDS), notes, cases=(_SEARCHED_HEADER if search else _HEADER, *table))


def _by_label(name: str, ours: list[Outcome], theirs: list[Outcome]) -> Iterator[tuple[str, Measured]]:
    """Yields each label's name, and its outcomes."""
    labels = list(ours[0]["figures"])
    for label in labels:
        mine = [{**each, "figures": each["figures"][label], "label": label} for each in ours]
        if "ensemble" in ours[0]:
            mine[0]["ensemble"] = ours[0]["ensemble"][label]
        yield _name(name, label, labels), Measured(mine, [each[label] for each in theirs])


def _name(log: str, label: str, labels: Collection[str]) -> str:
    return f"{log}: {label}" if len(labels) > 1 else log


def _with_seconds(log: LabelledLog, cases: _Cases, found: Mapping[str, Measured]) -> dict[str, Measured]:
    """Returns what was measured of the labels of ``log`` with their seconds; a training's are shared by its labels."""
    own = {name: each for name, each in found.items() if name.partition(":")[0] == log.name}
    settings = {each.ours[0]["label"]: each.theirs[0]["settings"] for each in own.values()}
    (timed,) = cases.outcomes(log, "seconds", timed=settings)
    return {
        _name(log.name, label, settings): replace(
            own[_name(log.name, label, settings)], seconds=(timed["seconds"] / len(settings), fit)
        )
        for label, fit in timed["fits"].items()
    }


def _quick(context: Context, search: int) -> Result:
    """Trains five steps on random rows: init's config, or two trials of a search; then the baselines."""
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="default-") as scratch:
        folder = Path(scratch)
        stand_in(folder / "log")
        changes = {"training.max_steps": 5, "training.batch_size": 256}
        spec = Spec([str(folder / "log" / "log.csv")], "click", [0], 1, changes, trials=1)
        ours = run(replace(spec, search=min(search, 2)), folder / "ours")
        theirs = run(replace(spec, baselines=True), folder / "baselines")
        settings = {"click": theirs[0]["click"]["settings"]}
        (timed,) = run(replace(spec, timed=settings), folder / "timed")
    ((_, measured),) = _by_label("random rows", ours, theirs)
    ratio = _mean(measured.ours, _ne) / _mean(measured.theirs, _baseline("lightgbm", "ne"))
    figures = [Figure(name, unit, (ratio,)) for name, unit in (("below_lightgbm", "%"), ("worst_against_lr", "x"))]
    figures += [Figure("calibrated", "%", (0.0,)), Figure("slowest", "x", (timed["seconds"] / timed["fits"]["click"],))]
    if search:
        ratio = float(measured.ours[0]["ensemble"]["test"]["ne"]) / _mean(measured.theirs, _baseline("lightgbm", "ne"))
        figures.append(Figure("ensemble_below_lightgbm", "%", (ratio,)))
    return Result(tuple(figures), 0, 1, ("random rows: these figures mean nothing",))


def _ne(outcome: Outcome) -> float:
    return _figure(outcome, "ne")


def _figure(outcome: Outcome, name: str) -> float:
    return float(outcome["figures"]["test"][name])


def _baseline(name: str, figure: str) -> Callable[[Outcome], float]:
    return lambda outcome: float(outcome[name][figure])


def _mean(found: list[Outcome], value: Callable[[Outcome], float]) -> float:
    return statistics.fmean(map(value, found))


def _figures(found: Mapping[str, Measured]) -> tuple[Figure, ...]:
    against_trees, against_lr, calibrations, seconds = [], [], [], []
    together: list[float] = []
    for measured in found.values():
        ours, theirs = measured.ours, measured.theirs
        ne = _mean(ours, _ne)
        against_trees.append(ne / _mean(theirs, _baseline("lightgbm", "ne")))
        against_lr.append(ne / _mean(theirs, _baseline("logistic_regression", "ne")))
        if "ensemble" in ours[0]:
            together.append(float(ours[0]["ensemble"]["test"]["ne"]) / _mean(theirs, _baseline("lightgbm", "ne")))
        positives = ours[0]["rows"]["test"] * _figure(ours[0], "base_rate")
        if positives >= ENOUGH_POSITIVES:
            calibrations.append(_mean(ours, lambda outcome: _figure(outcome, "calibration")))
        if measured.seconds is not None and ours[0]["rows"]["train"] <= 100_000:
            seconds.append(measured.seconds[0] / measured.seconds[1])
    share = 100 * statistics.fmean(ratio < 1 for ratio in against_trees)
    calibrated = 100 * statistics.fmean(0.9 <= each <= 1.1 for each in calibrations)
    figures = (
        Figure("below_lightgbm", "%", (share,), "logs on which the NE of init's config is below LightGBM's"),
        Figure("ne_ratio", "x", tuple(against_trees), "NE over LightGBM's, a sample a log"),
        Figure("worst_against_lr", "x", (max(against_lr),), "NE over logistic regression's, on the worst log"),
        Figure(
            "calibrated", "%", (calibrated,), f"logs within .9 to 1.1, of those with {ENOUGH_POSITIVES} test positives"
        ),
    )
    if together:
        share = 100 * statistics.fmean(ratio < 1 for ratio in together)
        figures += (
            Figure("ensemble_below_lightgbm", "%", (share,), "logs on which the ensemble's NE is below LightGBM's"),
            Figure("ensemble_ne_ratio", "x", tuple(together), "its NE over LightGBM's, a sample a log"),
        )
    if not seconds:
        return figures
    return (
        *figures,
        Figure("slowest", "x", (max(seconds),), "seconds over one fit of LightGBM, up to 100,000 training rows"),
        Figure("seconds_ratio", "x", tuple(seconds), "the same, a sample a log"),
    )


def _case(name: str, half: str, measured: Measured) -> tuple[str, ...]:
    ours, theirs = measured.ours, measured.theirs

    def spread(values: list[float]) -> str:
        deviation = statistics.stdev(values) if len(values) > 1 else 0.0
        return f"{statistics.fmean(values):.4f} ± {deviation:.4f}"

    def both(figure: str) -> tuple[str, str, str]:
        mine = spread([_figure(outcome, figure) for outcome in ours])
        trees, linear = (
            [float(outcome[name][figure]) for outcome in theirs] for name in ("lightgbm", "logistic_regression")
        )
        return mine, spread(trees), f"{statistics.fmean(linear):.4f}"

    return (
        name,
        half,
        f"{sum(ours[0]['rows'].values()):,}",
        *both("ne"),
        *both("auc"),
        f"{_mean(ours, lambda outcome: _figure(outcome, 'calibration')):.2f}",
        *_last(measured),
    )


def _last(measured: Measured) -> tuple[str, str]:
    """Returns the seconds of both, or the figures of the ensemble, if one of them was measured."""
    if "ensemble" in measured.ours[0]:
        together = measured.ours[0]["ensemble"]["test"]
        return f"{together['ne']:.4f}", f"{together['auc']:.4f}"
    return ("-", "-") if measured.seconds is None else (f"{measured.seconds[0]:.0f}", f"{measured.seconds[1]:.1f}")


def _notes(trials: int, search: int) -> tuple[str, ...]:
    what, ensemble = "its config trained as it is", ""
    if search:
        what = f"its config is the first of {search} trials of `ziggurat search hyperparameters`, whose best is trained"
        ensemble = f"ensemble: that of the search (`--ensemble {MEMBERS}`), its own trials, so of seed {SEEDS[0]} alone"
    return (
        f"each log is given to `ziggurat init`, {what}, with seeds {SEEDS[0]} to {SEEDS[-1]}; "
        "figures are of the test split of that config, mean ± standard deviation over the seeds",
        f"LightGBM: {trials} settings with seed {SEEDS[0]} (report's grid, then random ones), chosen by validation and "
        "refitted with the other seeds. Logistic regression as in report. Both get the columns that init's config "
        "prepared",
        ensemble if search else _TIMES,
        "rules of init were chosen by the validation figures of the development half alone",
    )


_TIMES = (
    f"our seconds: inferring, preparing, training and evaluating, with seed {SEEDS[0]}; those of LightGBM: one fit of "
    "the chosen settings with early stopping, on the prepared columns; both with all cores, one right after the other"
)
_SOURCES = (
    "bench/quality/out_of_the_box.py",
    "bench/quality/default_trial.py",
    "bench/quality/collection/sets.py",
)

OUT_OF_THE_BOX = Benchmark(
    name="out_of_the_box",
    claim="The config that init writes, unchanged, has a lower NE than a tuned LightGBM on most logs, and is nowhere "
    "behind logistic regression.",
    targets={
        "below_lightgbm": Target(75.0),
        "worst_against_lr": Target(1.005, "at most"),
        "calibrated": Target(100.0),
        "slowest": Target(3.0, "at most"),
    },
    depends_on=_SOURCES,
    run=_run,
)

SEARCHED = Benchmark(
    name="out_of_the_box_searched",
    claim=f"The best config of {SEARCHED_TRIALS} trials of the search has a lower NE than a LightGBM of as many trials "
    "on nearly all logs.",
    targets={"below_lightgbm": Target(90.0), "worst_against_lr": Target(1.005, "at most")},
    depends_on=_SOURCES,
    run=partial(_run, trials=SEARCHED_TRIALS, search=SEARCHED_TRIALS),
)

"""Whether the config that ``ziggurat init`` writes, unchanged, beats a tuned LightGBM and logistic regression."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench import provenance
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.quality.board import ROOT
from bench.quality.collection.sets import COLLECTION, LabelledLog
from bench.quality.default_trial import Spec, run
from bench.quality.stand_in import stand_in
from ziggurat.core.errors import EnvironmentMismatch

SEEDS = (0, 1, 2)
TRIALS, SEARCHED_TRIALS = 20, 30
ENOUGH_POSITIVES = 200
SOURCES = ("bench/quality/default_trial.py",)
_HEADER = (
    "log", "half", "rows", "ours: NE", "LightGBM NE", "logistic regression NE", "ours: AUC", "LightGBM AUC",
    "logistic regression AUC", "calibration", "ours s", "one fit s",
)  # fmt: skip

Outcome = dict[str, Any]
Both = tuple[list[Outcome], list[Outcome]]
"""The outcomes of our model and of the baselines, one per seed."""


def outcomes(
    log: LabelledLog,
    context: Context,
    seeds: tuple[int, ...] = SEEDS,
    changes: Mapping[str, Any] | None = None,
    threads: int | None = None,
    baselines: bool = False,
    trials: int = TRIALS,
    search: int = 0,
) -> list[Outcome]:
    """Returns the outcome of each seed, from earlier runs of the same code where there are any.

    Args:
        log: the log.
        context: where files are kept, and the folder of ``--data``.
        seeds: the seeds.
        changes: dotted key -> value, set in the config of ``init``.
        threads: threads; by default one for each core.
        baselines: whether the baselines are trained, not our model.
        trials: trials of LightGBM.
        search: trials of a search, whose best config is trained in place of init's; 0 for none.

    Raises:
        EnvironmentMismatch: the process ended with another status than 0; the message has the end of its errors.
    """
    folder = context.cache / "out_of_the_box"
    files = log.files(folder / "logs", context.data)
    spec = Spec(
        [str(path) for path in files],
        log.label,
        list(seeds),
        threads or len(os.sched_getaffinity(0)),
        dict(changes or {}),
        baselines,
        trials,
        search,
    )
    content = [
        [path.name for path in files],
        log.name,
        *list(asdict(spec).values())[1:],
        provenance.digest(ROOT, SOURCES),
    ]
    key = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]
    kind = "baselines" if baselines else "search" if search else "init"
    out = folder / "outcomes" / f"{log.name}-{kind}-{key}.json"
    if not out.exists():
        _process(log, spec, out)
    return json.loads(out.read_text(encoding="utf-8"))["outcomes"]


def _process(log: LabelledLog, spec: Spec, out: Path) -> None:
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as given:
        json.dump(asdict(spec), given)
        given.flush()
        command = [sys.executable, "-m", "bench.quality.default_trial", given.name, str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(spec.threads)}
        ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode:
        tail = "\n".join(ended.stderr.splitlines()[-15:])
        raise EnvironmentMismatch(f"{log.name}: ended with status {ended.returncode}:\n{tail}", "see the errors above")


def _run(context: Context, trials: int = TRIALS, search: int = 0) -> Result:
    if context.quick:
        return _quick(context, search)
    found: dict[str, Both] = {}
    cases: list[tuple[str, ...]] = []
    for log in COLLECTION:
        ours = outcomes(log, context, trials=trials, search=search)
        for name, both in _by_label(log.name, ours, outcomes(log, context, trials=trials, baselines=True)):
            found[name] = both
            cases.append(_case(name, log.half, *both))
            context.say(" | ".join((name, *cases[-1][3:6])))
    figures = _figures(found)
    if search:
        figures = tuple(figure for figure in figures if "seconds" not in figure.name and figure.name != "slowest")
    return Result(figures, 0, len(SEEDS), _notes(trials, search), cases=(_HEADER, *cases))


def _by_label(name: str, ours: list[Outcome], theirs: list[Outcome]) -> Iterator[tuple[str, Both]]:
    """Yields each label's name and its outcomes; the seconds of a training are shared by its labels."""
    labels = list(ours[0]["figures"])
    for label in labels:
        seconds = len(labels)
        mine = [{**each, "figures": each["figures"][label], "seconds": each["seconds"] / seconds} for each in ours]
        yield f"{name}: {label}" if len(labels) > 1 else name, (mine, [each[label] for each in theirs])


def _quick(context: Context, search: int) -> Result:
    """Trains five steps on random rows: init's config, or two trials of a search; then the baselines."""
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="default-") as scratch:
        folder = Path(scratch)
        stand_in(folder / "log")
        changes = {"training.max_steps": 5, "training.batch_size": 256}
        spec = Spec([str(folder / "log" / "log.csv")], "click", [0], 1, changes, trials=1)
        ours = run(replace(spec, search=min(search, 2)), folder / "ours")
        theirs = run(replace(spec, baselines=True), folder / "baselines")
    ((_, (mine, other)),) = _by_label("random rows", ours, theirs)
    ratio = _mean(mine, _ne) / _mean(other, _baseline("lightgbm", "ne"))
    figures = [Figure(name, unit, (ratio,)) for name, unit in (("below_lightgbm", "%"), ("worst_against_lr", "x"))]
    return Result((*figures, Figure("calibrated", "%", (0.0,))), 0, 1, ("random rows: these figures mean nothing",))


def _ne(outcome: Outcome) -> float:
    return _figure(outcome, "ne")


def _figure(outcome: Outcome, name: str) -> float:
    return float(outcome["figures"]["test"][name])


def _baseline(name: str, figure: str) -> Callable[[Outcome], float]:
    return lambda outcome: float(outcome[name][figure])


def _mean(found: list[Outcome], value: Callable[[Outcome], float]) -> float:
    return statistics.fmean(map(value, found))


def _figures(found: Mapping[str, Both]) -> tuple[Figure, ...]:
    against_trees, against_lr, calibrations, seconds = [], [], [], []
    for ours, theirs in found.values():
        ne = _mean(ours, _ne)
        against_trees.append(ne / _mean(theirs, _baseline("lightgbm", "ne")))
        against_lr.append(ne / _mean(theirs, _baseline("logistic_regression", "ne")))
        positives = ours[0]["rows"]["test"] * _figure(ours[0], "base_rate")
        if positives >= ENOUGH_POSITIVES:
            calibrations.append(_mean(ours, lambda outcome: _figure(outcome, "calibration")))
        if ours[0]["rows"]["train"] <= 100_000:
            single = statistics.median(outcome["single_fit_seconds"] for outcome in theirs)
            seconds.append(statistics.median(outcome["seconds"] for outcome in ours) / single)
    share = 100 * statistics.fmean(ratio < 1 for ratio in against_trees)
    calibrated = 100 * statistics.fmean(0.9 <= each <= 1.1 for each in calibrations)
    return (
        Figure("below_lightgbm", "%", (share,), "logs on which the NE of init's config is below LightGBM's"),
        Figure("ne_ratio", "x", tuple(against_trees), "NE over LightGBM's, a sample a log"),
        Figure("worst_against_lr", "x", (max(against_lr),), "NE over logistic regression's, on the worst log"),
        Figure(
            "calibrated", "%", (calibrated,), f"logs within .9 to 1.1, of those with {ENOUGH_POSITIVES} test positives"
        ),
        Figure("slowest", "x", (max(seconds),), "seconds over one fit of LightGBM, up to 100,000 training rows"),
        Figure("seconds_ratio", "x", tuple(seconds), "the same, a sample a log"),
    )


def _case(name: str, half: str, ours: list[Outcome], theirs: list[Outcome]) -> tuple[str, ...]:
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
        f"{statistics.median(outcome['seconds'] for outcome in ours):.0f}",
        f"{statistics.median(outcome['single_fit_seconds'] for outcome in theirs):.1f}",
    )


def _notes(trials: int, search: int) -> tuple[str, ...]:
    what = "its config trained as it is"
    if search:
        what = f"its config is the first of {search} trials of `ziggurat search hyperparameters`, whose best is trained"
    return (
        f"each log is given to `ziggurat init`, {what}, with seeds {SEEDS[0]} to {SEEDS[-1]}; "
        "figures are of the test split of that config, mean ± standard deviation over the seeds",
        f"LightGBM: {trials} settings with seed {SEEDS[0]} (report's grid, then random ones), chosen by validation and "
        "refitted with the other seeds. Logistic regression as in report. Both get the columns that init's config "
        "prepared",
        "our seconds: inferring, preparing, "
        + ("searching, " if search else "")
        + "training and evaluating; those of LightGBM: one fit of the chosen settings with early stopping, on the "
        "prepared columns; both with all cores",
        "rules of init were chosen by the validation figures of the development half alone",
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

"""Whether tables whose alike values share rows predict better than tables compressed otherwise to as many bytes.

On each log the largest tables are made 2, 5, 10 and 50 times smaller, weights and maps together, by each encoder, and
the same model is trained with the same settings and seeds. The seed is that of the training, the hash, the proxy and
the clusters, so that the spread over seeds is that of all of them.

MovieLens-100K and Census-Income come from the package index; Frappe and the Amazon logs are read from the folder given
with ``--data``, where they are there. The generated log has 200,000 ids of 500 planted kinds; what maps of 10^7 ids
cost is measured of made-up vectors.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from scipy import stats

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.quality.board import ROOT
from bench.quality.compression.build import measure
from bench.quality.compression.contestants import (
    CONTESTANTS,
    FULL,
    MIXED,
    Budget,
    with_encoders,
    with_mixed_dimensions,
)
from bench.quality.compression.logs import DIM, LOGS, RATIOS, SEEDS, Log, logs
from bench.quality.compression.trial import known_values, run
from bench.quality.tabular.measured import begin
from bench.resumable_cases import ResumableCases, kept_in_repository, measure_in_processes
from ziggurat.core.config import parse_config
from ziggurat.features.encoders.compressed.learned_hash import MIN_COUNT
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

BUILT, QUICK_BUILT = 10_000_000, 20_000
QUICK = ("hash", "learned_hash")
OURS = tuple(each.name for each in CONTESTANTS if each.ours)
_HEADER = ("log", "ratio", "encoder", "test NE", "95 %", "test AUC", "95 %", "bytes", "of them map", "prepared in")
MEASURED = "version 3"
"""What the outcomes of a case mean; outcomes of another version are measured again."""
DEPENDS_ON = (
    "bench/quality/learned_hash.py",
    "bench/quality/compression",
    "src/ziggurat/features/encoders/compressed",
    "src/ziggurat/features/preparation/proxy",
    "src/ziggurat/data/synthetic",
)

Outcomes = dict[tuple[str, int, int], dict[str, Any]]
"""(contestant, ratio, seed) -> outcome; the full table has ratio 1."""


@dataclass(frozen=True, slots=True)
class _Case:
    """A training: whose it is, and what :func:`bench.quality.compression.trial.run` gets."""

    log: str
    contestant: str
    ratio: int
    seed: int
    spec: dict[str, Any]

    @property
    def key(self) -> tuple[str, int, int]:
        return self.contestant, self.ratio, self.seed

    @property
    def name(self) -> str:
        return f"{self.log} {self.contestant} {self.ratio}x seed {self.seed}, settings {self.digest}"

    @property
    def digest(self) -> str:
        """A digest of all that the training depends on but for where its files lie."""
        data = {key: value for key, value in self.spec["experiment"]["data"].items() if key != "folder"}
        told = {**self.spec, "experiment": {**self.spec["experiment"], "data": data}}
        return hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _run(context: Context) -> Result:
    figures: list[Figure] = []
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="learned-hash-") as scratch:
        kept = Path(scratch) / "cases.jsonl" if context.quick else kept_in_repository("learned_hash")
        cases = ResumableCases(kept, MEASURED)
        chosen = logs(context)
        rows_s: list[float] = []
        for log in chosen:
            outcomes = _outcomes(log, context, cases)
            figures += _figures(log, outcomes)
            rows += _rows(log, outcomes)
            if log.name == "generated":
                rows_s += [each["row_s"] for each in outcomes.values() if each["row_s"]]
        figures += _build(context, rows_s)
    missing = [] if context.quick else [each.name for each in LOGS if each not in chosen]
    notes = [
        "trainings ran beside each other, and seconds of preparation beside whatever else ran: they are no measurement",
        f"test NE and AUC, mean over seeds; intervals are 95 % of Student's t. Tables of {DIM} numbers in float32; "
        "bytes are those of weights and maps of the tables that are made smaller.",
        "lead: NE of the best other encoder, by its mean on test rows, less that of the better of ours, which is "
        "chosen by its mean on validation rows; lead_apart: 1 if the intervals of the two do not overlap. "
        "cce clusters the table of our proxy while that trains, by our coordinates and weights, not its authors'; "
        "helper clusters it once, afterwards; lead_without_cce leaves both out.",
        "equal training is that of the model: encoders with a proxy take up to ten passes of that more over the "
        "training rows. Rivals have fixed shares of private rows, maps and narrow rows, as ours have",
        "look-up: values are looked up when data is prepared or requests arrive, never in a step; the share is that of "
        "a table's values in the seconds of steps of the generated log, without evaluations; its trainings ran beside "
        "each other",
        "build: private rows, clusters and map, from vectors that a proxy has learned; proxy: its steps on a million "
        "rows with a table of as many values, of which a training takes a few passes",
        *left_out(),
        cases.commits,
        *([f"not measured, as --data does not hold them: {', '.join(missing)}"] if missing else []),
    ]
    seeds = max(len(log.seeds) for log in chosen)
    return Result(tuple(figures), 0, seeds, tuple(notes), cases=(_HEADER, *rows))


def left_out() -> list[str]:
    """Returns what of the grid of all logs, ratios and seeds is not measured."""
    parts: list[str] = []
    for log in LOGS:
        ratios = [f"{ratio}x" for ratio in RATIOS if ratio not in log.ratios]
        if ratios:
            parts.append(f"{log.name} at {', '.join(ratios)}")
        if len(log.seeds) < len(SEEDS):
            parts.append(f"{log.name} with more than {len(log.seeds)} of {len(SEEDS)} seeds")
    return [f"left out of the grid of all ratios and seeds, for its time: {'; '.join(parts)}"] if parts else []


def _outcomes(log: Log, context: Context, cases: ResumableCases) -> Outcomes:
    values = log.values(context)
    folder = context.cache / "learned_hash"
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="full-") as scratch:
        dataset = api.prepare(parse_config(Experiment, values), Path(scratch) / "data")
        known = {table: known_values(dataset, table) for table in log.tables}
        often = {table: known_values(dataset, table, MIN_COUNT) for table in log.tables}
    wanted = {case.name: case for case in _cases(log, values, known, often, quick=context.quick)}
    missing = {name: partial(run, case.spec, folder) for name, case in wanted.items() if name not in cases}
    context.say(f"{log.name}: {len(missing)} of {len(wanted)} trainings to go")

    def say(number: int, name: str, outcome: dict[str, Any]) -> None:
        context.say(f"{number}/{len(missing)} {name}: ne {outcome['test']['ne']:.4f}")

    if context.quick:
        for name, measure_case in missing.items():
            cases.get(name, measure_case)
    else:
        spawn = multiprocessing.get_context("spawn")
        processes = min(len(missing), len(os.sched_getaffinity(0)))
        if processes:
            pool = ProcessPoolExecutor(processes, spawn, initializer=begin, initargs=(os.getpid(),))
            measure_in_processes(cases, pool, missing, say)
    return {case.key: cases.get(name, dict[str, Any]) for name, case in wanted.items()}


def _cases(
    log: Log, values: Mapping[str, Any], known: Mapping[str, int], often: Mapping[str, int], *, quick: bool
) -> Iterable[_Case]:
    for seed in log.seeds:
        seeded = {**values, "training": {**values["training"], "seed": seed}}
        full = {"experiment": seeded, "tables": dict.fromkeys(log.tables, False)}
        yield _Case(log.name, FULL, 1, seed, full)
        for ratio in log.ratios:
            budgets = {
                table: Budget(count, often[table], DIM, 4 * DIM * count / ratio, seed) for table, count in known.items()
            }
            for contestant in CONTESTANTS:
                if quick and contestant.name not in QUICK:
                    continue
                sections = {table: contestant.section(budget) for table, budget in budgets.items()}
                spec = {"experiment": with_encoders(seeded, sections), "tables": dict.fromkeys(log.tables, True)}
                yield _Case(log.name, contestant.name, ratio, seed, spec)
            if quick:
                continue
            mixed = {f"{table} {band}": True for table in log.tables for band in ("hot", "rare")}
            spec = {"experiment": with_mixed_dimensions(seeded, budgets), "tables": mixed}
            yield _Case(log.name, MIXED, ratio, seed, spec)


def _figures(log: Log, outcomes: Outcomes) -> list[Figure]:
    figures: list[Figure] = []
    shares: list[float] = []
    for ratio in (1, *log.ratios):
        names = _names(outcomes, ratio)
        for name in names:
            for figure in ("ne", "auc"):
                samples = _samples(outcomes, name, ratio, log.seeds, "test", figure)
                figures.append(Figure(f"{log.name} {ratio}x {name}.{figure}", "", samples, statistic="mean"))
        others = [name for name in names if name not in OURS]
        if ratio == 1:
            continue
        shares.append(
            max(_bytes(outcomes, name, ratio, log) / _bytes(outcomes, FULL, 1, log) for name in names) * ratio
        )
        for figure, rivals in (
            ("lead", others),
            ("lead_without_cce", [name for name in others if name not in {"cce", "helper"}]),
        ):
            figures += _lead(f"{log.name} {ratio}x {figure}", log, outcomes, ratio, rivals)
    figures.append(Figure(f"{log.name} bytes", "x", (max(shares),), "the most of its bytes that an encoder takes"))
    return figures


def _bytes(outcomes: Outcomes, name: str, ratio: int, log: Log) -> int:
    """Returns the bytes of a contestant's weights and maps."""
    first = outcomes[name, ratio, log.seeds[0]]
    return int(first["weights"] + first["maps"])


def _lead(title: str, log: Log, outcomes: Outcomes, ratio: int, others: Sequence[str]) -> list[Figure]:
    """Returns the lead before the best of other encoders, and whether the intervals are apart."""

    def mean(name: str, split: str) -> float:
        return statistics.fmean(_samples(outcomes, name, ratio, log.seeds, split, "ne"))

    best = min(others, key=lambda name: mean(name, "test"))
    ours = min((name for name in OURS if name in _names(outcomes, ratio)), key=lambda name: mean(name, "validation"))
    theirs, mine = (_samples(outcomes, name, ratio, log.seeds, "test", "ne") for name in (best, ours))
    lead = tuple(a - b for a, b in zip(theirs, mine, strict=True))
    note = f"{ours} before {best}"
    apart = statistics.fmean(mine) + half_width(mine) < statistics.fmean(theirs) - half_width(theirs)
    return [
        Figure(title, "NE", lead, note, statistic="mean"),
        Figure(f"{title}_apart", "", (float(apart),), note),
    ]


def _rows(log: Log, outcomes: Outcomes) -> Iterable[tuple[str, ...]]:
    for ratio in (1, *log.ratios):
        for name in _names(outcomes, ratio):
            cells = [log.name, f"{ratio}x", name]
            for figure in ("ne", "auc"):
                samples = _samples(outcomes, name, ratio, log.seeds, "test", figure)
                cells += [f"{statistics.fmean(samples):.4f}", f"± {half_width(samples):.4f}"]
            first = outcomes[name, ratio, log.seeds[0]]
            cells += [f"{first['weights'] + first['maps']:,}", f"{first['maps']:,}", f"{first['prepare_s']:.1f} s"]
            yield tuple(cells)


def half_width(samples: Sequence[float]) -> float:
    """Returns half of the 95 % interval of the mean, by Student's t; 0 for a single sample."""
    if len(samples) < 2:
        return 0.0
    return float(stats.t.ppf(0.975, len(samples) - 1)) * statistics.stdev(samples) / len(samples) ** 0.5


def _build(context: Context, row_s: Sequence[float]) -> list[Figure]:
    """Returns what maps of 10^7 values cost; ``row_s`` are the seconds that trainings with such a table take a row."""
    if context.quick:
        measured = measure(QUICK_BUILT)
    else:
        with tempfile.TemporaryDirectory(dir=context.cache) as scratch:
            out = Path(scratch) / "build.json"
            command = [sys.executable, "-m", "bench.quality.compression.build", str(BUILT), str(out)]
            subprocess.run(command, cwd=ROOT, check=True)
            measured = json.loads(out.read_text(encoding="utf-8"))
    names = {"build_s": "s", "bytes": "bytes/value", "ns": "ns/value"}
    figures = [
        Figure(f"{form} map: {key.replace('_s', '')}", unit, (float(measured[f"{form}_{key}"]),))
        for form in ("plain", "compact")
        for key, unit in names.items()
    ]
    figures += [
        Figure(f"{form} map: look-up", "%", tuple(1e-7 * float(measured[f"{form}_ns"]) / each for each in row_s), note)
        for form, note in (("plain", "of a training step, were values looked up in it"), ("compact", "the same"))
    ]
    return [
        *figures,
        Figure("proxy", "s/10^6 rows", (float(measured["proxy_s"]),)),
        Figure("peak memory of both maps", "GiB", (float(measured["peak_gib"]),)),
    ]


def _names(outcomes: Outcomes, ratio: int) -> list[str]:
    return list(dict.fromkeys(name for name, found, _ in outcomes if found == ratio))


def _samples(
    outcomes: Outcomes, name: str, ratio: int, seeds: Sequence[int], split: str, figure: str
) -> tuple[float, ...]:
    return tuple(outcomes[name, ratio, seed][split][figure] for seed in seeds)


def _targets(chosen: Iterable[Log]) -> dict[str, Target]:
    """Returns the targets of logs: the leads wherever tables are made five times smaller or more, and that no encoder
    takes more than a fiftieth more bytes than it may."""
    found: dict[str, Target] = {}
    for log in chosen:
        found |= {f"{log.name} {ratio}x lead": Target(0.0, "more than") for ratio in log.ratios if ratio >= 5}
        found[f"{log.name} bytes"] = Target(1.02, "at most")
    return found


LEARNED_HASH = Benchmark(
    name="learned_hash",
    claim=(
        "Tables made five times smaller or more by letting alike values share rows, maps included, predict better than "
        "those of every other encoder of as many bytes."
    ),
    targets={
        **_targets(each for each in LOGS if each.given is None),
        "movielens 10x lead_apart": Target(1.0),
        "compact map: bytes": Target(1.5, "at most"),
        "compact map: build": Target(600.0, "at most"),
        "plain map: build": Target(600.0, "at most"),
        "compact map: look-up": Target(5.0, "at most"),
        "plain map: look-up": Target(5.0, "at most"),
    },
    data_targets=_targets(each for each in LOGS if each.given is not None),
    depends_on=DEPENDS_ON,
    run=_run,
)

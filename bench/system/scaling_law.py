"""Wukong, DCN-V2 and DLRM in growing sizes on a log whose labels need interactions of up to eight columns.

The log is generated: ids have latent vectors, and the likenesses of two, three and four pairs of neighbouring columns
are multiplied, as where a user takes to an item and the item to the hour. The groups are nested, so that a model finds
the large ones by way of the small. Each model climbs its own ladder through `ziggurat.training.scale`; all see the same
rows in the same order. The ladders lie in the cache, named after the code that trains them: an interrupted measurement
goes on where it stopped, and never with other code.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import provenance
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from ziggurat.data.generate import generate, truth_file
from ziggurat.data.generate_config import CategoricalColumn, GeneratorConfig, LabelColumn

if TYPE_CHECKING:
    from ziggurat.metrics.power_law import PowerLawFit
    from ziggurat.training.scale_result import ScaleResult

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 12
IDS = 10
DIM = 16
DECADE = 10.0
LEAST_FALL = 0.01  # percent: what flattens or rises counts as this much, so that a ratio to it is finite
RIVALS = ("dcn_v2", "dlrm")

MODELS: dict[str, dict[str, Any]] = {
    "wukong": {
        "name": "wukong", "layers": 1, "fm_outputs": 12, "linear_outputs": 12, "rank": 12, "fm_mlp": {"hidden": [64]},
        "head": {"bottom": {"hidden": [64]}},
    },
    "dcn_v2": {"name": "dcn_v2", "cross_layers": 2, "rank": 32, "deep": {"hidden": [64, 32]}},
    "dlrm": {"name": "dlrm", "top": {"hidden": [128, 64]}},
}  # fmt: skip
"""The first rung of each ladder: some 100,000 forward FLOPs per example or less."""


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of everything."""

    rows: int
    epochs: int
    batch_size: int
    rungs: Mapping[str, int]
    seeds: int


FULL = Extent(2_400_000, 1, 1024, {"wukong": 8, "dcn_v2": 8, "dlrm": 5}, 2)
QUICK = Extent(6_000, 1, 1024, dict.fromkeys(MODELS, 3), 2)


def run(context: Context) -> Result:
    extent = QUICK if context.quick else FULL
    log, bayes = _log(context, extent.rows)
    if context.quick:
        with tempfile.TemporaryDirectory(dir=context.cache, prefix="scaling_law-") as scratch:
            return _measured(context, extent, log, bayes, Path(scratch))
    digest = provenance.digest(ROOT, DEPENDS_ON)[:8]
    return _measured(context, extent, log, bayes, context.cache / f"scaling_law-{digest}")


def _measured(context: Context, extent: Extent, log: Path, bayes: float, place: Path) -> Result:
    from ziggurat.report.scale_page import write_scale

    results = {name: _climbed(context, name, extent, log, place) for name in MODELS}
    fits = dict(zip(results, write_scale(place / "scale.html", list(results.values())), strict=True))
    context.say(f"drew {place / 'scale.html'}")
    notes = (
        f"{extent.rows:,} generated rows of {COLUMNS} columns of {IDS} ids, {extent.epochs} epochs, batch "
        f"{extent.batch_size:,}; planted: groups of two to eight columns",
        f"the best possible log-loss is {bayes:.4f}",
        *(_told(name, result, fits[name]) for name, result in results.items()),
    )
    return Result(_figures(results, fits["wukong"]), 0, extent.seeds, notes)


def _figures(results: Mapping[str, ScaleResult], fit: PowerLawFit | None) -> tuple[Figure, ...]:
    assert fit is not None
    sizes = [rung.size.flops for rung in results["wukong"].rungs]
    low, high = fit.interval("exponent")
    figures = [
        Figure("wukong_span", "x", (sizes[-1] / sizes[0],), "largest to smallest size, forward FLOPs per example"),
        Figure("wukong_exponent", "", (fit.law.exponent,), f"95 %: {low:.3g} to {high:.3g}"),
        Figure("wukong_exponent_low", "", (low,), "lower end of that interval"),
        Figure("wukong_r2", "", (fit.r2_log,), "of log loss"),
    ]
    falls = {name: _late_falls(result) for name, result in results.items()}
    figures += [
        Figure(f"{name}_late_fall", "%", found, "fall of log-loss over the last tenfold of FLOPs, a seed each")
        for name, found in falls.items()
    ]
    for name in RIVALS:
        pairs = zip(falls["wukong"], falls[name], strict=True)
        found = tuple(ours / max(theirs, LEAST_FALL) for ours, theirs in pairs)
        figures.append(Figure(f"late_fall_vs_{name}", "x", found, "of the same seed"))
    return tuple(figures)


def _late_falls(result: ScaleResult) -> tuple[float, ...]:
    """Percent by which log-loss falls from a tenth of the largest size to the largest, for each seed."""
    import numpy as np

    sizes = np.log([rung.size.flops for rung in result.rungs])
    losses_NS = np.array([rung.values(result.split, "log_loss") for rung in result.rungs])
    before = [float(np.interp(sizes[-1] - np.log(DECADE), sizes, losses_N)) for losses_N in losses_NS.T]
    return tuple(100 * (1 - after / earlier) for after, earlier in zip(losses_NS[-1].tolist(), before, strict=True))


def _told(name: str, result: ScaleResult, fit: PowerLawFit | None) -> str:
    assert fit is not None
    rungs = ", ".join(f"{rung.size.flops:,}: {rung.mean(result.split, 'log_loss'):.4f}" for rung in result.rungs)
    return f"{name}, FLOPs per example: log-loss: {rungs}. {fit.verdict}"


def _climbed(context: Context, name: str, extent: Extent, log: Path, place: Path) -> ScaleResult:
    """The finished ladder of one model."""
    from ziggurat.core.config import parse_config
    from ziggurat.training.experiment import Experiment
    from ziggurat.training.scale import scale

    config = parse_config(Experiment, experiment(log, MODELS[name], extent))
    scaled = scale(
        config, place / name, rungs=extent.rungs[name], seeds=extent.seeds, prepared=place / "prepared",
        progress=Said(context),
    )  # fmt: skip
    if scaled.signal is not None:
        raise KeyboardInterrupt
    return scaled.result


class Said:
    """A Progress that keeps only the notes."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def start(self, stage: str, total: float | None, unit: str) -> None: ...

    def advance(self, done: float, **figures: float | str) -> None: ...

    def finish(self, message: str = "") -> None: ...

    def note(self, message: str) -> None:
        self._context.say(message)


def experiment(log: Path, model: Mapping[str, Any], extent: Extent) -> dict[str, Any]:
    """The config of a ladder's first rung."""
    identity = {"name": "identity", "rows": IDS}
    return {
        "name": "scaling-law",
        "data": {
            "source": {"name": "parquet", "files": [str(log)]},
            "split": {"name": "random", "validation": 0.05, "test": 0.1},
            "labels": [{"name": "y"}],
        },
        "features": [
            {"name": column.name, "kind": "categorical", "type": "integer", "encoder": identity}
            for column in shape(extent.rows).categorical
        ],
        "embeddings": {"dim": DIM, "init_std": 0.1, "optimizer": {"name": "adam", "lr": 0.005}},
        "model": dict(model),
        "optimizer": {"name": "adam", "lr": 0.003},
        "training": {
            "batch_size": extent.batch_size,
            "epochs": extent.epochs,
            "schedule": {"name": "warmup_cosine", "warmup_steps": 100},
        },
    }


def shape(rows: int) -> GeneratorConfig:
    """The log: neighbours in a ring of columns interact, in twos, and the twos in fours, sixes and eights."""
    names = [f"c{k}" for k in range(COLUMNS)]

    def groups(size: int, step: int) -> list[tuple[str, ...]]:
        return [tuple(names[(start + k) % COLUMNS] for k in range(size)) for start in range(0, COLUMNS, step)]

    return GeneratorConfig(
        rows=rows,
        labels=(LabelColumn(name="y", rate=0.5, first_order=0.3, second_order=1.5, high_order=3.0),),
        categorical=tuple(CategoricalColumn(name=name, cardinality=IDS, exponent=0.3) for name in names),
        pairs=tuple((group[0], group[1]) for group in groups(2, 1)),
        likenesses=(*groups(4, 2), *groups(6, 2), *groups(8, 4)),
        format="parquet",
    )


def _log(context: Context, rows: int) -> tuple[Path, float]:
    """The generated log and the best possible log-loss; one that an earlier run left in the cache is used again."""
    config, log = shape(rows), context.cache / f"scaling_law-{rows}.parquet"
    truth: dict[str, Any] | None = None
    if log.exists() and truth_file(log).exists():
        truth = json.loads(truth_file(log).read_text(encoding="utf-8"))
    if truth is None or truth["config"] != config.model_dump(mode="json"):
        context.say(f"generating {rows:,} rows")
        truth = generate(config, log)
    return log, float(truth["labels"]["y"]["bayes_log_loss"])


DEPENDS_ON = (
    *(
        f"src/ziggurat/{room}"
        for room in ("core", "data", "features", "interactions", "models", "embeddings", "optim", "training")
    ),
    "src/ziggurat/metrics/power_law.py",
    "src/ziggurat/metrics/rung_noise.py",
    "bench/system/scaling_law.py",
)

SCALING_LAW = Benchmark(
    name="scaling_law",
    claim="Wukong's log-loss falls along a power law over two orders of magnitude of FLOPs "
    "where DCN-V2 and DLRM flatten.",
    targets={
        "wukong_span": Target(100),
        "wukong_exponent_low": Target(0.01),
        "wukong_r2": Target(0.95),
        "late_fall_vs_dcn_v2": Target(3),
        "late_fall_vs_dlrm": Target(3),
    },
    depends_on=DEPENDS_ON,
    run=run,
)

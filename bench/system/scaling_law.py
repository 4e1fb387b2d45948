"""Trains Wukong, DCN-V2 and DLRM in growing sizes on a log whose labels need hundreds of interactions of columns.

The log is generated. Ids have latent vectors, and each pair of columns interacts by the similarity of its vectors, as a
user who likes an item. In addition, hundreds of products of two or three similarities, that is of four or six columns,
are planted: more than a small model can represent. All models see the same rows in the same order. DCN-V2 and DLRM use
their own growing sizes (`ziggurat.training.scaling.model_sizes`); Wukong uses the sizes listed here, which add a second
layer and then widen the MLPs. Each sweep is one process of `ziggurat scale` with one thread, and as many run at a time
as there are cores. The sweeps are kept in the cache under a digest of the code that trains them, so an interrupted
measurement resumes, and only with the same code.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench import provenance
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn
from ziggurat.data.synthetic.generate import generate, truth_file

if TYPE_CHECKING:
    from ziggurat.metrics.power_law import PowerLawFit
    from ziggurat.training.scaling.result import ScaleResult

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 12
IDS = 10
QUADS, SEXTETS = 400, 200
DIM = 8
DECADE = 10.0
LEAST_FALL = 0.01
"""The least late fall of log-loss in percent; flat and rising curves count as this, so ratios stay finite."""
RIVALS = ("dcn_v2", "dlrm")


def _wukong(layers: int, fm_outputs: int, linear_outputs: int, mlp: int, head: int) -> dict[str, Any]:
    return {
        "name": "wukong",
        "layers": layers,
        "fm_outputs": fm_outputs,
        "linear_outputs": linear_outputs,
        "rank": None,
        "fm_mlp": {"hidden": [mlp]},
        "head": {"bottom": {"hidden": [head]}},
    }


WUKONG_SIZES = (
    _wukong(1, 2, 4, 8, 8),
    _wukong(1, 2, 6, 32, 16),
    _wukong(1, 4, 8, 64, 32),
    _wukong(2, 4, 8, 64, 32),
    _wukong(2, 4, 8, 128, 64),
    _wukong(2, 4, 12, 256, 64),
    _wukong(2, 4, 12, 512, 128),
    _wukong(2, 4, 12, 1024, 128),
)
MODELS: dict[str, dict[str, Any]] = {
    "wukong": WUKONG_SIZES[0],
    "dcn_v2": {"name": "dcn_v2", "cross_layers": 2, "rank": 16, "deep": {"hidden": [32, 32]}},
    "dlrm": {"name": "dlrm", "top": {"hidden": [64, 32]}},
}
"""The first size of each sweep: 8,000 to 21,000 forward FLOPs per example."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The extent of a measurement.

    Attributes:
        rows: the number of generated rows.
        epochs: the number of epochs of each run.
        batch_size: the batch size of each run.
        sizes: the number of model sizes of each model.
        seeds: the number of runs of each size.
    """

    rows: int
    epochs: int
    batch_size: int
    sizes: Mapping[str, int]
    seeds: int


FULL = Extent(3_600_000, 1, 1024, {"wukong": len(WUKONG_SIZES), "dcn_v2": 7, "dlrm": 5}, 3)
QUICK = Extent(6_000, 1, 1024, dict.fromkeys(MODELS, 3), 2)


def run(context: Context) -> Result:
    """Measures the benchmark, with few rows and sizes if ``context.quick``."""
    extent = QUICK if context.quick else FULL
    log, bayes = generated_log(context, extent.rows)
    if context.quick:
        with tempfile.TemporaryDirectory(dir=context.cache, prefix="scaling_law-") as scratch:
            return _measured(context, extent, log, bayes, Path(scratch))
    digest = provenance.digest(ROOT, DEPENDS_ON)[:8]
    return _measured(context, extent, log, bayes, context.cache / f"scaling_law-{digest}")


def _measured(context: Context, extent: Extent, log: Path, bayes: float, folder: Path) -> Result:
    """Trains all sweeps in ``folder`` and returns their figures; ``bayes`` is the best possible log-loss."""
    from ziggurat.report.scaling.page import write_scale

    results = _finished_sweeps(context, extent, log, folder)
    fits = dict(zip(results, write_scale(folder / "scale.html", list(results.values())), strict=True))
    context.say(f"drew {folder / 'scale.html'}")
    notes = (
        f"{extent.rows:,} generated rows of {COLUMNS} columns of {IDS} ids, {extent.epochs} epochs, batch "
        f"{extent.batch_size:,}; planted: all pairs, {QUADS} groups of four and {SEXTETS} of six",
        f"the best possible log-loss is {bayes:.4f}",
        *(_summary(name, result, fits[name]) for name, result in results.items()),
    )
    return Result(_figures(results, fits["wukong"]), 0, extent.seeds, notes)


def _figures(results: Mapping[str, ScaleResult], fit: PowerLawFit | None) -> tuple[Figure, ...]:
    """Returns the figures; ``fit`` is the law of Wukong."""
    assert fit is not None
    flops = [entry.size.flops for entry in results["wukong"].sizes]
    low, high = fit.interval("exponent")
    figures = [
        Figure("wukong_span", "x", (flops[-1] / flops[0],), "largest to smallest size, forward FLOPs per example"),
        Figure("wukong_exponent", "", (fit.law.exponent,), f"95 %: {low:.3g} to {high:.3g}"),
        Figure("wukong_exponent_low", "", (low,), "lower end of that interval"),
    ]
    if math.isfinite(fit.r2_log):  # it is undefined for the three sizes of a quick run
        figures.append(Figure("wukong_r2", "", (fit.r2_log,), "of log loss"))
    falls = {name: _late_falls(result) for name, result in results.items()}
    figures += [
        Figure(f"{name}_late_fall", "%", found, "fall of log-loss over the last tenfold of FLOPs, per seed")
        for name, found in falls.items()
    ]
    for name in RIVALS:
        pairs = zip(falls["wukong"], falls[name], strict=True)
        flatter = statistics.median(ours / max(theirs, LEAST_FALL) for ours, theirs in pairs)
        dearer = _compute_ratio(results[name], results["wukong"])
        figures += [
            Figure(f"late_fall_vs_{name}", "x", (flatter,), "Wukong's late fall over the rival's, median of the seeds"),
            Figure(f"compute_of_{name}", "x", (dearer,), "FLOPs at its best log-loss over Wukong's for the same"),
            Figure(f"behind_{name}", "x", (max(flatter, dearer),), "the greater of the two"),
        ]
    figures += [
        Figure(f"{name}@{entry.size.flops}", "nats", tuple(entry.values(result.split, "log_loss")))
        for name, result in results.items()
        for entry in result.sizes
    ]
    return tuple(figures)


def _compute_ratio(rival: ScaleResult, ours: ScaleResult) -> float:
    """Returns how many times the FLOPs of ``ours`` the rival needs for its best log-loss; 0 if ours never reaches it.

    The log-loss of a size is the mean over its seeds. Between two of our sizes it is interpolated over log FLOPs.
    """
    best = min(rival.sizes, key=lambda entry: entry.mean(rival.split, "log_loss"))
    target = best.mean(rival.split, "log_loss")
    points = [(math.log(entry.size.flops), entry.mean(ours.split, "log_loss")) for entry in ours.sizes]
    if points[0][1] <= target:
        return best.size.flops / ours.sizes[0].size.flops
    for (size, loss), (larger, lower) in pairwise(points):
        if lower <= target:
            return best.size.flops / math.exp(size + (larger - size) * (loss - target) / (loss - lower))
    return 0.0


def _late_falls(result: ScaleResult) -> tuple[float, ...]:
    """Returns by how many percent log-loss falls from a tenth of the largest size to the largest, for each seed.

    Shape legend: N model sizes, S seeds.
    """
    import numpy as np

    sizes = np.log([entry.size.flops for entry in result.sizes])
    losses_NS = np.array([entry.values(result.split, "log_loss") for entry in result.sizes])
    before = [float(np.interp(sizes[-1] - np.log(DECADE), sizes, losses_N)) for losses_N in losses_NS.T]
    return tuple(100 * (1 - after / earlier) for after, earlier in zip(losses_NS[-1].tolist(), before, strict=True))


def _summary(name: str, result: ScaleResult, fit: PowerLawFit | None) -> str:
    """Returns a line with the log-loss of each size and the verdict on the law."""
    assert fit is not None
    losses = ", ".join(f"{entry.size.flops:,}: {entry.mean(result.split, 'log_loss'):.4f}" for entry in result.sizes)
    return f"{name}, FLOPs per example: log-loss: {losses}. {fit.verdict}"


def _finished_sweeps(context: Context, extent: Extent, log: Path, folder: Path) -> dict[str, ScaleResult]:
    """Trains the sweep of each model, several at a time, and returns their results."""
    from ziggurat.core.config import parse_config
    from ziggurat.training import api
    from ziggurat.training.experiment import Experiment
    from ziggurat.training.scaling.result import ScaleResult

    configs = {name: experiment(log, model, extent) for name, model in MODELS.items()}
    api.prepare(parse_config(Experiment, configs["wukong"]), folder / "prepared")
    for name, config in configs.items():
        (folder / f"{name}.yaml").write_text(json.dumps(config, indent=2), encoding="utf-8")  # JSON is YAML
    sizes = [{"model": size} for size in WUKONG_SIZES[: extent.sizes["wukong"]]]
    _sizes_file(folder, "wukong").write_text(json.dumps(sizes, indent=2), encoding="utf-8")
    children: list[subprocess.Popen[str]] = []
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        try:
            for each in [pool.submit(_train_sweep, context, name, extent, folder, children) for name in MODELS]:
                each.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in children:
                child.send_signal(signal.SIGINT)  # the child saves its state; nothing is sent to one that has ended
            raise
    return {name: ScaleResult.load(folder / name) for name in MODELS}


def _train_sweep(
    context: Context, name: str, extent: Extent, folder: Path, children: list[subprocess.Popen[str]]
) -> None:
    """Trains the sweep of one model in a separate process, and passes on its line about each finished run.

    Args:
        context: receives the lines.
        name: the name of the model.
        extent: the extent of the measurement.
        folder: the folder of all sweeps.
        children: receives the process, so that the caller can stop it.

    Raises:
        EnvironmentMismatch: the process failed.
    """
    command = [sys.executable, "-m", "ziggurat", "scale", str(folder / f"{name}.yaml"), "--run", str(folder / name)]
    listed = _sizes_file(folder, name)
    sizes = ["--sizes-file", str(listed)] if listed.exists() else ["--sizes", str(extent.sizes[name])]
    command += ["--prepared", str(folder / "prepared"), *sizes, "--seeds", str(extent.seeds)]
    child = subprocess.Popen(
        command,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    children.append(child)
    assert child.stdout is not None
    others = [line.rstrip() for line in child.stdout if not _reported(context, name, line)]
    if child.wait() != 0:
        raise EnvironmentMismatch(
            f"the sweep of {name} ended with status {child.returncode}:\n" + "\n".join(others[-15:]),
            f"run it by hand: {' '.join(command)}",
        )


def _sizes_file(folder: Path, name: str) -> Path:
    """Returns the file with the sizes of a model; it exists only if the model does not use its own growing sizes."""
    return folder / f"{name}-sizes.yaml"


def _reported(context: Context, name: str, line: str) -> bool:
    """Returns whether ``line`` is about a finished run, and prints it if so."""
    finished = ", log-loss " in line
    if finished:
        context.say(f"{name}: {line.strip()}")
    return finished


def experiment(log: Path, model: Mapping[str, Any], extent: Extent) -> dict[str, Any]:
    """Returns the config of a sweep's first size, for a model on the generated log."""
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
    """Returns the config of the log: all pairs of columns interact, and so do random groups of four and six columns."""
    names = [f"c{k}" for k in range(COLUMNS)]
    draw = random.Random(0)
    return GeneratorConfig(
        rows=rows,
        labels=(LabelColumn(name="y", rate=0.5, first_order=0.3, second_order=1.0, high_order=1.8),),
        categorical=tuple(CategoricalColumn(name=name, cardinality=IDS, exponent=0.3) for name in names),
        pairs=tuple(combinations(names, 2)),
        likenesses=(
            *(tuple(draw.sample(names, 4)) for _ in range(QUADS)),
            *(tuple(draw.sample(names, 6)) for _ in range(SEXTETS)),
        ),
        format="parquet",
    )


def generated_log(context: Context, rows: int) -> tuple[Path, float]:
    """Returns the generated log and the best possible log-loss; reuses a log that an earlier run left in the cache."""
    config, log = shape(rows), context.cache / f"scaling_law-{rows}.parquet"
    truth: dict[str, Any] | None = None
    if log.exists() and truth_file(log).exists():
        truth = json.loads(truth_file(log).read_text(encoding="utf-8"))
    if truth is None or truth["config"] != config.model_dump(mode="json"):
        context.say(f"generating {rows:,} rows")
        truth = generate(config, log)
    return log, float(truth["labels"]["y"]["bayes_log_loss"])


DEPENDS_ON = ("bench/system/scaling_law.py", "src/ziggurat/cli/scale.py")

SCALING_LAW = Benchmark(
    name="scaling_law",
    claim="Wukong's log-loss falls along a power law over two orders of magnitude of FLOPs "
    "where DCN-V2 and DLRM flatten or need several times the compute.",
    targets={
        "wukong_span": Target(100),
        "wukong_exponent_low": Target(0.01),
        "wukong_r2": Target(0.95),
        **{f"behind_{name}": Target(3) for name in RIVALS},
    },
    depends_on=DEPENDS_ON,
    run=run,
    layout="law",
)

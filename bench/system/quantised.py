"""Measures the bytes saved and the quality lost by sending embedding rows and gradients in half precision.

Bytes are counted in the lab (`system/lab.py`). Quality is measured with `ziggurat train --nproc 2` on a generated log,
in both precisions, for each seed. Rounding differences grow with every step, so two runs of one seed diverge in either
direction. The cost of half precision is therefore the mean over seeds.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.lab.cluster import unavailable
from bench.lab.workload import Case
from bench.system.lab import measured, note
from bench.system.train_command import trained
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn
from ziggurat.data.synthetic.generate import generate

HALF = {"forward_precision": "fp16", "backward_precision": "fp16"}
SHARDING = {"planner": {"replicate_up_to": 1}}
"""No table is replicated, so the rows of all tables are sent."""

SEEDS = 32
"""The number of seeds, for which the standard error of the mean, about .01 %, is below the target."""


def run(context: Context) -> Result:
    cases = [Case("fp32"), Case("fp16", parallel=HALF)]
    figures: list[Figure] = []
    notes = [note(context.quick)]
    reason = unavailable()
    if reason is None:
        found = measured(context, cases)
        for name, rounds in found.items():
            figures.append(Figure(f"{name}.inter", "MB", tuple(each["inter"] / 1e6 for each in rounds)))
        share = tuple(a["inter"] / b["inter"] for a, b in zip(found["fp16"], found["fp32"], strict=True))
        figures.append(Figure("bytes", "x", share, "fp16 over fp32: rows, gradients, ids and the dense part"))
    elif context.quick:
        notes = [f"bytes are not counted here: {reason}"]
    else:
        raise EnvironmentMismatch(reason, "run the lab as root on Linux with iproute2 installed")
    seeds = 1 if context.quick else SEEDS
    losses = _losses(context, seeds)
    figures += [Figure(f"{name}.log_loss", "nats", values, statistic="mean") for name, values in losses.items()]
    worse = tuple(100 * (a / b - 1) for a, b in zip(losses["fp16"], losses["fp32"], strict=True))
    off = f"{statistics.stdev(worse) / len(worse) ** 0.5:.3f} %" if len(worse) > 1 else "unknown"
    comment = f"per seed, on test; standard error of the mean {off}"
    figures.append(Figure("log_loss_change", "%", worse, comment, statistic="mean"))
    return Result(tuple(figures), 1, seeds, tuple(notes))


def _losses(context: Context, seeds: int) -> dict[str, tuple[float, ...]]:
    """Returns precision -> the test log-loss of each seed."""
    rows = 6_000 if context.quick else 400_000
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="quantised-") as scratch:
        folder = Path(scratch)
        config = _log(rows)
        generate(config, folder / "log.parquet")
        path = folder / "exp.yaml"
        path.write_text(json.dumps(_experiment(folder, [column.name for column in config.categorical])))
        losses: dict[str, list[float]] = {"fp32": [], "fp16": []}
        for seed in range(seeds):
            for name, found in losses.items():
                parallel = HALF if name == "fp16" else {}
                settings = {"training.seed": seed, **{f"parallel.{key}": value for key, value in parallel.items()}}
                found.append(trained(path, folder / f"{name}-{seed}", 2, settings)["log_loss"])
                context.say(f"seed {seed}, {name}: log-loss {found[-1]:.5f} on test")
    return {name: tuple(values) for name, values in losses.items()}


def _log(rows: int) -> GeneratorConfig:
    names = [f"c{k}" for k in range(8)]
    pairs = tuple((names[k], names[(k + 1) % 8]) for k in range(8))
    return GeneratorConfig(
        rows=rows,
        labels=(LabelColumn(name="y", rate=0.3),),
        categorical=tuple(CategoricalColumn(name=name, cardinality=2_000, exponent=1.05) for name in names),
        pairs=pairs,
        format="parquet",
    )


def _experiment(folder: Path, names: list[str]) -> dict[str, Any]:
    return {
        "name": "quantised",
        "data": {
            "source": {"name": "parquet", "files": [str(folder / "log.parquet")]},
            "split": {"name": "random", "validation": 0.1, "test": 0.2},
            "labels": [{"name": "y"}],
        },
        "features": [{"name": name, "kind": "categorical", "type": "integer"} for name in names],
        "embeddings": {"dim": 16, "optimizer": {"name": "rowwise_adagrad", "lr": 0.05}},
        "model": {"name": "dlrm"},
        "training": {
            "batch_size": 1024,
            "epochs": 1,
            "device": "cpu",
            "schedule": {"name": "warmup_linear", "warmup_share": 0.05, "final_share": 0.0},
        },
        "planning": SHARDING,
    }


QUANTISED_COMMS = Benchmark(
    name="quantised_comms",
    claim="Sending embedding rows and gradients as FP16 halves the bytes and does not change the log-loss.",
    targets={"bytes": Target(0.6, "at most"), "log_loss_change": Target(0.02, "at most")},
    depends_on=("bench/system/quantised.py", "src/ziggurat/cli/train.py"),
    run=run,
)

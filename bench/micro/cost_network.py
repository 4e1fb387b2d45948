"""Measures how well cost networks predict the time of fused lookups on unseen tables.

``own`` is the network of ``ziggurat doctor --measure`` on this machine. ``shipped`` comes with ziggurat and may have
been measured on a faster or slower machine. Sets of tables are drawn from the test half of the synthetic pool. Their
lookups run with forward pass, backward pass and update, and the times are compared with the predictions.

There are three more predictors for comparison. ``shipped_scaled`` is the shipped network times one number, fitted to
this machine. ``bytes`` is the memory traffic of the cost model, scaled in the same way. ``singles`` adds up the own
network's times of single tables, so it is a cost without interactions between tables.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import spearmanr

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.provenance import digest
from ziggurat.cli.progress import console_progress
from ziggurat.planning.autoshard.cost_network import CostNetwork, CostSample
from ziggurat.planning.autoshard.features import NAMES
from ziggurat.planning.autoshard.learned import NETWORK, SHIPPED
from ziggurat.planning.autoshard.pool import table_pool, train_test_halves
from ziggurat.training.placement.kernel_benchmark import draw_set, measure, measure_set, single_threaded

CPU = torch.device("cpu")
SETS, GROUPS = 300, 5
LEARNED, QUICK_LEARNED = 2000, 15
SEED = 1_000_000
"""The first number of a set, above the numbers of all sets used in training."""


def run(context: Context) -> Result:
    tables = train_test_halves(table_pool())[1]
    shipped = CostNetwork.load(SHIPPED / NETWORK)
    folder = context.cache / f"kernels-{digest(ROOT, COST_NETWORK.depends_on)[:12]}{'-quick' * context.quick}"
    with console_progress() as progress:
        own = measure(folder, CPU, QUICK_LEARNED if context.quick else LEARNED, progress)
    sets = 10 if context.quick else SETS
    samples: list[CostSample] = []
    with single_threaded(CPU):
        for number in range(sets):
            found = measure_set(draw_set(SEED + number, tables), CPU, SEED + number)
            samples.append(CostSample(np.array(found["features"]), found["seconds"]))
            if number % 20 == 0:
                context.say(f"set {number + 1} of {sets}: {1e3 * found['seconds']:.2f} ms")
    taken = np.array([sample.seconds for sample in samples])
    predictions = {
        "own": own.predict([sample.features for sample in samples]),
        "shipped": shipped.predict([sample.features for sample in samples]),
        "singles": np.array([own.seconds(own.embed(sample.features)).sum() for sample in samples]),
        "bytes": np.array([_bytes(sample.features) for sample in samples]),
    }
    times = {name: float(np.median(taken / predictions[name])) for name in ("shipped", "bytes")}
    predictions["bytes"] *= times["bytes"]
    predictions["shipped_scaled"] = predictions["shipped"] * times["shipped"]
    parts = [np.arange(sets)[place::GROUPS] for place in range(GROUPS)]
    figures: list[Figure] = []
    for name, predicted in predictions.items():
        off = 100 * np.abs(predicted / taken - 1)
        ranks = tuple(float(spearmanr(predicted[part], taken[part]).statistic) for part in parts)  # pyright: ignore[reportAttributeAccessIssue]
        medians = tuple(float(np.median(off[part])) for part in parts)
        figures += [
            Figure(f"{name}.error", "%", medians, "median of |predicted − measured| / measured"),
            Figure(f"{name}.rank_correlation", "", ranks, "Spearman's"),
        ]
    notes = (
        f"{sets} sets of up to 128 tables and 4,096 examples, {1e3 * taken.min():.2f} to {1e3 * taken.max():,.0f} ms; "
        "a sample is a fifth of them",
        *(
            f"{name}: {network.origin['machine']}, {network.origin['date']}, {network.origin['samples']:,} sets"
            for name, network in (("own", own), ("shipped", shipped))
        ),
        f"shipped_scaled: times {times['shipped']:.2f}",
        "singles: the sum of own's times of single tables; bytes: the memory traffic of the cost model, times one "
        "number",
    )
    return Result(tuple(figures), 0, GROUPS, notes)


def _bytes(features_TF: np.ndarray) -> float:
    """Returns the memory traffic of the cost model.

    It reads each id, its row and its gradient, and updates each touched row.
    """
    of = dict(zip(NAMES, (2 ** features_TF[:, : len(NAMES) - 17] - 1).T, strict=False))
    ids, columns = of["ids"], of["columns"]
    return float((ids * (8 + 8 * columns) + of["touched"] * (8 * columns + 8 * of["state"])).sum())


COST_NETWORK = Benchmark(
    name="cost_network",
    claim="A cost network predicts the time of fused lookups of unseen tables within 10 %, and their ranking.",
    targets={
        "own.error": Target(10.0, "at most"),
        "own.rank_correlation": Target(0.95),
        "shipped.rank_correlation": Target(0.95),
    },
    depends_on=("bench/micro/cost_network.py", "src/ziggurat/planning/autoshard/shipped"),
    run=run,
)

"""Sample results of scaling sweeps with known laws."""

from __future__ import annotations

import numpy as np

from ziggurat.metrics.power_law import PowerLaw
from ziggurat.report.scaling.chart import COLOURS, SweepSeries
from ziggurat.training.scaling.model_sizes import Size
from ziggurat.training.scaling.result import RunResult, ScaleResult, SizeResult

LAW = PowerLaw(0.44, 0.06 * 120_000**0.3, 0.3)


def sweep_result(
    law: PowerLaw = LAW, model: str = "wukong", name: str = "shop", sizes: int = 5, seeds: int = 3, noise: float = 2e-4
) -> ScaleResult:
    """Returns a sweep from 120 kFLOP, each size 3 × the last. Losses are the law's plus noise; AUC is 1.2 − loss."""
    random = np.random.default_rng(5)
    found: list[SizeResult] = []
    for number in range(1, sizes + 1):
        flops = 120_000 * 3 ** (number - 1)
        runs = tuple(
            RunResult(
                seed,
                f"rung-{number:02d}/seed-{seed}",
                1200,
                4_800_000,
                3 * flops * 4_800_000,
                40.0 * number + seed,
                {"test": {"log_loss": loss, "auc": 1.2 - loss}},
            )
            for seed, loss in enumerate((float(law(flops)) + random.normal(0, noise, seeds)).tolist())
        )
        config = {"name": model, "layers": 2 ** min(number, 3), "rank": 16 + number, "shortcut": True}
        found.append(SizeResult(number, config, Size(flops, 1000 * number + 7, 654_321), runs))
    config = {"name": name, "model": dict(found[0].model), "training": {"seed": 0}}
    return ScaleResult(name, "test", "f00d" * 16, seeds, tuple(found), config)


def sweep_series(*results: ScaleResult) -> list[SweepSeries]:
    """Returns the sweeps with their laws, in the order of the colours."""
    return [
        SweepSeries(each.model, each, each.fit(resamples=100), colour)
        for each, colour in zip(results, COLOURS, strict=False)
    ]

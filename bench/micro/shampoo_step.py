"""Measures how much longer a training step takes with Shampoo than with AdamW, by the interval between roots.

A step is the dense part of a training step, as in ``dense_speed``: forward pass, loss, backward pass down to the
gradient of the embeddings, and the optimizer. Four steps are measured in turns: with AdamW; with Shampoo, without
updating its second moments and roots; with an update of the second moments; and with second moments and roots. The time
of an average step that updates second moments every s steps and roots every f steps is computed as
plain + (statistics − plain) / s + (roots − statistics) / f. It is divided by AdamW's time of the same round.
"""

from __future__ import annotations

from functools import partial
from statistics import median

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.measure import Samples, interleave, ratios, seconds

THREADS = 2
BATCH_SIZE = 4096
WARMUPS, REPEATS = 2, 21
FREQUENCIES = ((1, 1), (10, 1), (20, 1), (100, 1), (10, 10), (20, 10), (50, 10), (100, 10))
"""The steps between computations of the roots, and between updates of the second moments."""
RECOMMENDED = "roots_50_statistics_10"
"""Shampoo's default."""


def run(context: Context) -> Result:
    import torch  # here, so that listing the benchmarks stays quick

    from bench.micro.shampoo_cases import CASES, KINDS, SETTINGS, step
    from ziggurat.training.malloc_tuning import keep_freed_memory

    rows, warmups, repeats, threads = (32, 1, 2, 1) if context.quick else (BATCH_SIZE, WARMUPS, REPEATS, THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    keep_freed_memory()
    figures: list[Figure] = []
    every = (f"roots every {roots}, gradients every {gradients}" for roots, gradients in FREQUENCIES)
    cases: list[tuple[str, ...]] = [("model", "settings", "AdamW", "Shampoo", "with gradients", "with roots", *every)]
    try:
        for name in list(CASES)[-1:] if context.quick else CASES:
            for setting in list(SETTINGS)[:1] if context.quick else SETTINGS:
                label = f"{name}, {setting}"
                taken = {kind: step(name, setting, kind, rows) for kind in KINDS}
                turns = {kind: partial(seconds, each) for kind, each in taken.items()}
                context.say(label)
                found = interleave(turns, warmups, repeats, context.say)
                over = {every: _over(found, *every) for every in FREQUENCIES}
                figures += [
                    Figure(f"{name}.{setting}.roots_{f}_statistics_{s}", "x", samples, "a step over AdamW's")
                    for (f, s), samples in over.items()
                ]
                times = [f"{1e3 * median(samples):.1f} ms" for samples in found.values()]
                middle = [f"{median(samples):.2f}×" for samples in over.values()]
                cases.append((name, setting, *times, *middle))
    finally:
        torch.set_num_threads(before)
    notes = (
        f"batch {rows:,}, {threads} threads, fp32, not compiled",
        *(
            f"{name}: {case.dims.features} fields of {case.dims.dim}, {case.description}"
            for name, case in CASES.items()
        ),
        *(f"{setting}: {description}" for setting, (_, description) in SETTINGS.items()),
    )
    return Result(tuple(figures), warmups, repeats, notes, {}, tuple(cases))


def _over(found: dict[str, Samples], frequency: int, every: int) -> Samples:
    """Returns the time of an average step relative to AdamW's, in each round.

    Args:
        found: kind of a step -> its seconds.
        frequency: the steps between computations of the roots.
        every: the steps between updates of the second moments.
    """
    steps = tuple(
        plain + (statistics - plain) / every + (roots - statistics) / frequency
        for plain, statistics, roots in zip(found["plain"], found["statistics"], found["roots"], strict=True)
    )
    return ratios(steps, found["adamw"])


SHAMPOO_STEP = Benchmark(
    name="shampoo_step",
    claim="A training step with Shampoo takes at most a tenth longer than with AdamW, roots included.",
    targets={
        f"{name}.default.{RECOMMENDED}": Target(1.10, "at most")
        for name in ("wukong_criteo", "dlrm_criteo", "wukong_frappe", "dlrm_frappe")
    },
    depends_on=("bench/micro/shampoo_step.py",),
    run=run,
)

"""What Shampoo costs: whole training steps beside AdamW's, for how often roots are taken.

A step is what the dense part does in training, as in ``dense_speed``: forward, loss, backward down to the embeddings'
gradient, and the optimizer. Four steps are measured in turns: AdamW's, Shampoo's, one in which second moments of rows
and columns take in the gradient, and one with roots in it. What a step takes with these every s steps, and roots every
f, is the second, one s-th of what the third takes more, and one f-th of what the last takes more than that; the ratio
is of that to AdamW's, round by round.
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
"""Steps from roots to roots, and from one gradient that second moments take in to the next."""
RECOMMENDED = "roots_50_statistics_10"
"""As by default."""


def run(context: Context) -> Result:
    import torch  # here, so that listing the benchmarks stays quick

    from bench.micro.shampoo_cases import CASES, KINDS, WAYS, step
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
            for way in list(WAYS)[:1] if context.quick else WAYS:
                label = f"{name}, {way}"
                taken = {kind: step(name, way, kind, rows) for kind in KINDS}
                turns = {kind: partial(seconds, each) for kind, each in taken.items()}
                context.say(label)
                found = interleave(turns, warmups, repeats, context.say)
                over = {every: _over(found, *every) for every in FREQUENCIES}
                figures += [
                    Figure(f"{name}.{way}.roots_{f}_statistics_{s}", "x", samples, "a step over AdamW's")
                    for (f, s), samples in over.items()
                ]
                times = [f"{1e3 * median(samples):.1f} ms" for samples in found.values()]
                middle = [f"{median(samples):.2f}×" for samples in over.values()]
                cases.append((name, way, *times, *middle))
    finally:
        torch.set_num_threads(before)
    notes = (
        f"batch {rows:,}, {threads} threads, fp32, not compiled",
        *(
            f"{name}: {case.dims.features} fields of {case.dims.dim}, {case.description}"
            for name, case in CASES.items()
        ),
        *(f"{way}: {description}" for way, (_, description) in WAYS.items()),
    )
    return Result(tuple(figures), warmups, repeats, notes, {}, tuple(cases))


def _over(found: dict[str, Samples], frequency: int, every: int) -> Samples:
    """A step with roots every ``frequency`` of them and gradients taken in ``every`` so many, over AdamW's."""
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

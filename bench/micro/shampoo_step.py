"""What Shampoo costs: whole training steps beside AdamW's, for how often roots are taken.

A step is what the dense part does in training, as in ``dense_speed``: forward, loss, backward down to the embeddings'
gradient, and the optimizer. Three steps are measured in turns: AdamW's, Shampoo's without roots, and Shampoo's with
roots in it. What a step takes with roots every f steps is the second and one f-th of what the third takes more; the
ratio is of that to AdamW's, round by round.
"""

from __future__ import annotations

from functools import partial
from statistics import median

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.measure import Samples, interleave, ratios, seconds

THREADS = 2
BATCH_SIZE = 4096
WARMUPS, REPEATS = 2, 9
FREQUENCIES = (1, 10, 50, 100, 500)
RECOMMENDED = 100


def run(context: Context) -> Result:
    import torch  # here, so that listing the benchmarks stays quick

    from bench.micro.shampoo_cases import CASES, WAYS, step
    from ziggurat.training.heap import keep_freed_memory

    rows, warmups, repeats, threads = (32, 1, 2, 1) if context.quick else (BATCH_SIZE, WARMUPS, REPEATS, THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    keep_freed_memory()
    figures: list[Figure] = []
    every = (f"every {frequency}" for frequency in FREQUENCIES)
    cases: list[tuple[str, ...]] = [("model", "settings", "AdamW", "without roots", "with roots", *every)]
    try:
        for name in list(CASES)[-1:] if context.quick else CASES:
            for way in list(WAYS)[:1] if context.quick else WAYS:
                label = f"{name}, {way}"
                taken = {kind: step(name, way, kind, rows) for kind in ("adamw", "plain", "roots")}
                turns = {kind: partial(seconds, each) for kind, each in taken.items()}
                context.say(label)
                found = interleave(turns, warmups, repeats, context.say)
                over = {f: _over(found, f) for f in FREQUENCIES}
                figures += [
                    Figure(f"{name}.{way}.every_{f}", "x", samples, "a step over AdamW's")
                    for f, samples in over.items()
                ]
                times = [f"{1e3 * median(samples):.1f} ms" for samples in found.values()]
                middle = [f"{median(samples):.2f}×" for samples in over.values()]
                cases.append((name, way, *times, *middle))
    finally:
        torch.set_num_threads(before)
    notes = (
        f"batch {rows:,}, {threads} threads, fp32, not compiled",
        *(f"{name}: {case.dims.features} fields of {case.dims.dim}, {case.told}" for name, case in CASES.items()),
        *(f"{way}: {told}" for way, (_, told) in WAYS.items()),
    )
    return Result(tuple(figures), warmups, repeats, notes, {}, tuple(cases))


def _over(found: dict[str, Samples], frequency: int) -> Samples:
    """A step with roots every so many, over AdamW's."""
    steps = tuple(
        plain + (roots - plain) / frequency for plain, roots in zip(found["plain"], found["roots"], strict=True)
    )
    return ratios(steps, found["adamw"])


SHAMPOO_STEP = Benchmark(
    name="shampoo_step",
    claim="A training step with Shampoo takes at most a tenth longer than with AdamW, roots included.",
    targets={
        f"{name}.small.every_{RECOMMENDED}": Target(1.10, "at most")
        for name in ("wukong_criteo", "dlrm_criteo", "wukong_frappe", "dlrm_frappe")
    },
    depends_on=(
        "src/ziggurat/optim",
        "src/ziggurat/models",
        "src/ziggurat/interactions",
        "bench/micro/dense_step.py",
        "bench/micro/shampoo_step.py",
        "bench/micro/shampoo_cases.py",
    ),
    run=run,
)

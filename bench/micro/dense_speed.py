"""Compares the FLOP rate of training steps of Wukong and DHEN with that of a matrix product on the same machine.

A step is the dense part of a training step: forward pass, loss, backward pass down to the gradient of the embeddings,
and Adam. The embeddings are already in memory. A step counts as three times the model's forward FLOPs, because the
backward pass has two matrix products for each one of the forward pass. Other operations (norms, activations, copies,
Adam) count as no FLOPs, but their time is included.

The reference is a square matrix product on the same threads and in the same dtype, measured immediately before and
after each step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.measure import Samples, interleave, ratios, seconds

if TYPE_CHECKING:
    from bench.micro.dense_step import Matmul, Step

THREADS = 2
BATCH_SIZE = 4096
SIDE = 2048
"""The size of the reference matrices; the fp32 rate varies by 4 % from 512 to 3,072, bf16 is 10 % faster at 1,024."""
PRECISIONS = ("fp32", "bf16")


def run(context: Context) -> Result:
    import torch  # here, so that listing the benchmarks stays quick

    from bench.micro.dense_step import CASES
    from ziggurat.training.malloc_tuning import keep_freed_memory

    rows, side, repeats, warmups, threads = (32, 256, 2, 1, 1) if context.quick else (BATCH_SIZE, SIDE, 9, 2, THREADS)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    keep_freed_memory()
    try:
        rates, references = _measure(context, rows, side, warmups, repeats)
    finally:
        torch.set_num_threads(before)
    figures = [*shares(rates, references), *_rates(rates, references)]
    sizes = [
        f"{name}: {case.dims.features} fields of {case.dims.dim}, {case.description}" for name, case in CASES.items()
    ]
    notes = (
        f"batch {rows:,}, {threads} threads, Adam's step and the embeddings' gradient included; the matrix product is "
        f"{side:,} × {side:,} × {side:,}",
        *sizes,
        "head of all but wukong_small: MLP 512-256",
        "bf16 is autocast over fp32 weights, relative to a matrix product of bf16 matrices",
        *(["quick: nothing compiled"] if context.quick else []),
    )
    return Result(tuple(figures), warmups, repeats, notes)


def _measure(
    context: Context, rows: int, side: int, warmups: int, repeats: int
) -> tuple[dict[str, Samples], dict[str, Samples]]:
    """Returns the GFLOP/s of each step, and of the matrix products around it, by the name of the step."""
    from bench.micro.dense_step import CASES, Matmul, Step

    matmuls = {precision: Matmul(precision, side) for precision in PRECISIONS}
    around: dict[str, list[float]] = {}
    contestants: dict[str, Callable[[], float]] = {}
    for name, case in CASES.items():
        for precision, compiled in case.modes:
            if compiled and context.quick:
                continue
            label = f"{name}_{precision}_{'compiled' if compiled else 'eager'}"
            step = Step(case, precision, compiled, rows)
            context.say(f"{label}: first step {seconds(step):.1f} s")
            contestants[label] = _between(step, matmuls[precision], around.setdefault(label, []))
    rates = interleave(contestants, warmups, repeats, context.say)
    return rates, {label: tuple(values[warmups:]) for label, values in around.items()}


def _between(step: Step, matmul: Matmul, around: list[float]) -> Callable[[], float]:
    """Returns a function that measures a step between two matrix products, and appends their rate to ``around``."""

    def once() -> float:
        before = seconds(matmul)
        taken = seconds(step)
        around.append(2 * matmul.gflop / (before + seconds(matmul)))
        return step.gflop / taken

    return once


def shares(rates: dict[str, Samples], references: dict[str, Samples]) -> list[Figure]:
    """Returns each model's rate as a share of the matrix product's rate, by precision.

    A sample is the better of the eager and the compiled model in that round.

    Args:
        rates: MODEL_PRECISION_MODE -> GFLOP/s, with a sample per round.
        references: the same for the matrix products around these samples.
    """
    figures: list[Figure] = []
    for name in dict.fromkeys(label.rpartition("_")[0] for label in rates):
        modes = [label for label in rates if label.rpartition("_")[0] == name]
        each = [ratios(rates[mode], references[mode]) for mode in modes]
        compared = " or ".join(mode.rpartition("_")[2] for mode in modes)
        figures.append(
            Figure(name, "x", tuple(map(max, zip(*each, strict=True))), f"of the matrix product, {compared}")
        )
    return figures


def _rates(rates: dict[str, Samples], references: dict[str, Samples]) -> list[Figure]:
    products = [
        Figure(f"matmul_{precision}", "GFLOP/s", references[f"wukong_{precision}_eager"], "around wukong, eager")
        for precision in PRECISIONS
    ]
    return [*products, *(Figure(label, "GFLOP/s", samples) for label, samples in rates.items())]


DENSE_SPEED = Benchmark(
    name="dense_speed",
    claim="Wukong and DHEN train at 60 % or more of the machine's matrix product rate for their FLOPs.",
    targets={"wukong_fp32": Target(0.6), "dhen_fp32": Target(0.6)},
    depends_on=("bench/micro/dense_speed.py",),
    run=run,
)

"""Measures the size of Shampoo's states per rank, for one, two, four and eight ranks.

Each rank stores the blocks that it owns. The sizes are uneven because blocks are assigned by their computation cost,
whose balance differs from that of their bytes, and because the largest block belongs to a single rank.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT

RANKS = (1, 2, 4, 8)
MODELS = ("wukong_criteo", "dlrm_criteo", "wukong_frappe", "dlrm_frappe")
SETTING = "default"
MB = 1e6


def run(context: Context) -> Result:
    figures: list[Figure] = []
    cases: list[tuple[str, ...]] = [
        ("model", "ranks", "parameters", "all states", "largest rank", "mean", "largest, of all")
    ]
    for name in MODELS[-1:] if context.quick else MODELS:
        whole = 0
        for ranks in RANKS[:2] if context.quick else RANKS:
            context.say(f"{name}: {ranks} ranks")
            parameters, states = _held_bytes(context, name, ranks)
            whole = whole or sum(states)
            if sum(states) != whole:
                raise RuntimeError(f"{name}: {ranks} ranks store {sum(states)} bytes in total, one rank {whole}")
            share = 100 * max(states) / whole
            sizes = (f"{each / MB:.2f} MB" for each in (parameters, whole, max(states), whole / ranks))
            cases.append((name, str(ranks), *sizes, f"{share:.0f} %"))
            figures.append(Figure(f"{name}.ranks_{ranks}", "MB", (max(states) / MB,), "of the rank with the most"))
            if ranks > 1:
                over = max(states) * ranks / whole
                figures.append(Figure(f"{name}.over_even_{ranks}", "x", (over,), "relative to an even share"))
    notes = ("bytes of states in fp32, counted on each rank after a step; blocks of up to 256",)
    return Result(tuple(figures), 0, 1, notes, {}, tuple(cases))


def _held_bytes(context: Context, name: str, ranks: int) -> tuple[int, list[int]]:
    """Returns the bytes of the parameters, and of the states of each rank."""
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="shampoo-") as scratch:
        folder = Path(scratch)
        (folder / "case").write_text(f"{name} {SETTING}")
        command = [sys.executable, "-m", "bench.system.ranks", str(ranks), "bench.system.shampoo_rank", scratch]
        subprocess.run(command, cwd=ROOT, check=True)
        found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(ranks)]
    return found[0]["parameters"], [each["state"] for each in found]


SHAMPOO_STATE = Benchmark(
    name="shampoo_state",
    claim="The size of Shampoo's states per rank falls with the number of ranks.",
    targets={f"{name}.over_even_{ranks}": Target(1.5, "at most") for name in MODELS for ranks in RANKS[1:3]},
    depends_on=("bench/system/shampoo_state.py",),
    run=run,
)

"""Compares end-to-end training with other libraries and with a hand-written loop.

Four processes train the same DeepFM on the same rows with the same batch size and threads. They take turns, one epoch
each, and every ratio is computed within a round. The time of an epoch includes shuffling, reading or assembling
batches, forward and backward pass, optimizers and progress. It excludes work that happens once (start-up, preparation,
building the model) and work that the peers do not do (evaluation, checkpoints).
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import workloads
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT, Contestant
from bench.measure import Samples, interleave, ratios
from bench.peers.workload import Workload
from ziggurat.core.errors import EnvironmentMismatch

PEERS_PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PEERS = {"deepctr_torch": "bench.peers.deepctr", "fuxictr": "bench.peers.fuxi"}
OURS = {"ziggurat": "bench.system.ours", "handwritten": "bench.system.handwritten"}


def _layers(workload: str) -> str:
    return "-".join(map(str, workloads.HIDDEN[workload]))


NOTES = (
    f"DeepFM, MLP {_layers('frappe')} on Frappe and {_layers('tables')} (DeepCTR-Torch's default) on tables, "
    f"embedding dim {workloads.DIM}, "
    f"batch {workloads.BATCH_SIZE:,}, Adam for everything dense; every process on torch's default number of threads",
    "tables: ziggurat and the hand-written loop update touched rows with row-wise Adagrad inside backward; the peers "
    "support only dense gradients, so their Adam passes over every row of every table",
    "first-order term: the peers have a table of one float per feature; ziggurat and the hand-written loop compute it "
    "from the embedding",
    "timed: everything in an epoch, data loading included; not timed: start-up, preparation, building the model, "
    "evaluation, checkpoints",
    "hand-written: rows shuffled once and kept in memory as batches; it never reads, shuffles or reports",
    "fuxictr: its in-memory loader, the faster of its two here; no evaluation between epochs. deepctr-torch: no "
    "output, no regularisation (the default adds a pass over every table in each step)",
)


def run(context: Context) -> Result:
    with_peers = PEERS_PYTHON.exists()
    if not with_peers and not context.quick:
        raise EnvironmentMismatch(
            f"{PEERS_PYTHON.parents[1].name}: the peers are not installed", "run `python3.11 bench/peers/install.py`"
        )
    warmups, repeats = (0, 1) if context.quick else (2, 7)
    figures: list[Figure] = []
    notes: list[str] = list(NOTES)
    versions: dict[str, str] = {}
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="throughput-") as scratch:
        frappe, tables = Path(scratch) / "frappe", Path(scratch) / "tables"
        for folder, workload in (
            (frappe, workloads.frappe(frappe, context.data, context.quick)),
            (tables, workloads.tables(tables, context.quick)),
        ):
            measured = _measure(context, folder, workload, with_peers, warmups, repeats, versions, notes)
            figures += _figures(workload.name, measured)
    if not with_peers:
        notes.append("the peers are not installed (`python3.11 bench/peers/install.py`), so they are left out here")
    return Result(tuple(figures), warmups, repeats, tuple(notes), versions)


def _measure(
    context: Context,
    folder: Path,
    workload: Workload,
    with_peers: bool,
    warmups: int,
    repeats: int,
    versions: dict[str, str],
    notes: list[str],
) -> dict[str, Samples]:
    """Returns the rows per second of every contestant in each round; adds to ``versions`` and ``notes``."""
    context.say(f"{workload.name}: {workload.source}")
    commands = {name: [sys.executable, "-m", module, folder] for name, module in OURS.items()}
    if with_peers:
        commands |= {name: [PEERS_PYTHON, "-m", module, folder] for name, module in PEERS.items()}
    with contextlib.ExitStack() as stack:
        contestants = {name: stack.enter_context(Contestant(name, command)) for name, command in commands.items()}
        for contestant in contestants.values():
            versions |= contestant.start().versions
        rounds = {name: contestant.epoch for name, contestant in contestants.items()}
        measured = interleave(rounds, warmups, repeats, lambda line: context.say(f"{workload.name} {line} rows/s"))
    losses = ", ".join(f"{name} {contestant.losses[-1]:.3f}" for name, contestant in contestants.items())
    threads = ", ".join(f"{name} {contestant.threads}" for name, contestant in contestants.items())
    notes.append(f"{workload.name}: {workload.source}; threads: {threads}; loss of the last epoch: {losses}")
    return measured


def _figures(workload: str, measured: dict[str, Samples]) -> list[Figure]:
    ours = measured["ziggurat"]
    figures = [Figure(f"{workload}_{name}", "rows/s", samples) for name, samples in measured.items()]
    peers: Sequence[Samples] = [measured[name] for name in PEERS if name in measured]
    if peers:
        best = tuple(max(rates) for rates in zip(*peers, strict=True))
        figures.append(Figure(f"{workload}_vs_best_peer", "x", ratios(ours, best), "to the faster peer of each round"))
    figures.append(Figure(f"{workload}_vs_handwritten", "x", ratios(ours, measured["handwritten"])))
    return figures


THROUGHPUT = Benchmark(
    name="throughput",
    claim="Training end to end is faster than DeepCTR-Torch and FuxiCTR, and close to a hand-written loop.",
    targets={
        "frappe_vs_best_peer": Target(1.2),
        "tables_vs_best_peer": Target(5),
        "frappe_vs_handwritten": Target(0.85),
        "tables_vs_handwritten": Target(0.92),
    },
    depends_on=("bench/system/throughput.py", "bench/peers/requirements.txt"),
    run=run,
)

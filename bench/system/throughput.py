"""Compares end-to-end training with other libraries and with a hand-written loop.

Four processes train the same DeepFM on the same rows with the same batch size and threads. They take turns, one epoch
each, and every ratio is computed within a round. The time of an epoch includes shuffling, reading or assembling
batches, forward and backward pass, optimizers and progress. It excludes work that happens once (start-up, preparation,
building the model) and work that the peers do not do (evaluation, checkpoints).

Ours trains with ``precision: auto``, which ``ziggurat init`` writes for a log of this size; everyone else in fp32.
Apart from the epochs, ours and the hand-written loop are trained with several seeds and compared on Frappe's held-out
rows: a speed is worth nothing at another quality.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
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


AUC_EPOCHS, AUC_SEEDS = 5, 5


def _layers(workload: str) -> str:
    return "-".join(map(str, workloads.HIDDEN[workload]))


NOTES = (
    f"DeepFM, MLP {_layers('frappe')} on Frappe and {_layers('tables')} (DeepCTR-Torch's default) on tables, "
    f"embedding dim {workloads.DIM}, "
    f"batch {workloads.BATCH_SIZE:,}, Adam for everything dense; every process on torch's default number of threads",
    "ziggurat: `precision: auto`, which `init` writes for logs of this size; the others fp32",
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
            if folder == frappe:
                figures += _equal_auc(context, folder)
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
    commands["ziggurat"].append("auto")
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


def _equal_auc(context: Context, folder: Path) -> list[Figure]:
    """Returns the AUC on the held-out rows, and how far ours is behind the loop's."""
    found: dict[str, list[float]] = {}
    epochs, seeds = (1, 1) if context.quick else (AUC_EPOCHS, AUC_SEEDS)
    for seed in range(seeds):
        command = [sys.executable, "-m", "bench.system.equal_auc", folder, str(epochs), str(seed)]
        done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            tail = "\n".join(done.stderr.splitlines()[-15:])
            raise EnvironmentMismatch(f"equal_auc ended with status {done.returncode}:\n{tail}", "run it by hand")
        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
            found.setdefault(name, []).append(value)
        context.say(f"frappe, seed {seed}: AUC " + ", ".join(f"{name} {each[-1]:.5f}" for name, each in found.items()))
    figures = [
        Figure(f"frappe_{name}_auc", "", tuple(values), f"{epochs} epochs, held-out rows, over seeds")
        for name, values in found.items()
    ]
    ours, by_hand = (sum(found[name]) / seeds for name in OURS)
    return [*figures, Figure("frappe_auc_behind", "", (by_hand - ours,), "the loop's mean less ours")]


THROUGHPUT = Benchmark(
    name="throughput",
    claim="Training end to end is faster than DeepCTR-Torch and FuxiCTR, and close to a hand-written loop.",
    targets={
        "frappe_vs_best_peer": Target(2.2),
        "tables_vs_best_peer": Target(9),
        "frappe_vs_handwritten": Target(1.6),
        "tables_vs_handwritten": Target(0.92),
        "frappe_auc_behind": Target(0.001, "at most"),
    },
    depends_on=("bench/system/throughput.py", "bench/peers/requirements.txt"),
    run=run,
)

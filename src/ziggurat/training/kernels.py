"""Measures what fused look-ups cost on this machine, and learns it: the measured part of planning.

Sets of tables are drawn from the synthetic pool (:mod:`~ziggurat.planning.autoshard.pool`), run for real
(:mod:`~ziggurat.embeddings.kernel_time`) and noted one by one, so that an interrupted measurement goes on; a cost
network is fitted to them at the end.
"""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ziggurat import __version__
from ziggurat.core import versions
from ziggurat.core.progress import Progress, Silent
from ziggurat.embeddings.kernel_time import OPTIMIZERS, Bags, kernel_seconds
from ziggurat.planning.autoshard.cost_network import CostNetwork, Sample, fit
from ziggurat.planning.autoshard.learned import NETWORK
from ziggurat.planning.autoshard.pool import DIMS, PoolTable, halves, table_pool
from ziggurat.planning.cost import FLOAT, state_bytes
from ziggurat.training.heap import keep_freed_memory
from ziggurat.training.measured import machine_name

SETS = 2000
"""Sets of tables that are measured: some ten minutes of one core."""
MOST_BYTES, MOST_IDS = 2 * 10**9, 6 * 10**6
"""Of a set, weights and ids of a batch: larger ones are not drawn."""
EPOCHS = 300
SAMPLES = "samples.jsonl"


@dataclass(frozen=True)
class Draw:
    """A set of tables in a step of so many examples.

    Attributes:
        tables: of the pool, each with the columns it has here.
        examples: of the step.
        optimizer: of all tables.
    """

    tables: tuple[tuple[PoolTable, int], ...]
    examples: int
    optimizer: str

    @property
    def bytes(self) -> int:
        """Of weights and optimizer states."""
        return sum(
            FLOAT * table.rows * columns + state_bytes({"name": self.optimizer}, table.rows, columns)
            for table, columns in self.tables
        )

    @property
    def features(self) -> list[list[float]]:
        """What the network sees of each table."""
        described = (table.described(columns, self.examples, self.optimizer) for table, columns in self.tables)
        return [each.round(6).tolist() for each in described]

    def steps(self, number: int, draw: np.random.Generator) -> list[list[Bags]]:
        """What the tables are asked for in so many steps."""
        return [[_bags(table, columns, self.examples, draw) for table, columns in self.tables] for _ in range(number)]


def measure(
    folder: Path,
    device: torch.device,
    sets: int = SETS,
    progress: Progress | None = None,
    pool: Sequence[PoolTable] | None = None,
) -> CostNetwork:
    """The cost network of this machine, measured into ``folder``; what lies there of an earlier call is not repeated.

    Args:
        folder: for :data:`SAMPLES`, a line a set, and ``network.safetensors`` with ``network.json``.
        device: a CPU, one thread of which is measured, as a rank of several has, or a CUDA device.
        sets: how many, at least some hundreds to be of use.
        progress: where to show it.
        pool: tables to draw from; default: the half of the pool that is for learning.
    """
    progress, tables = progress or Silent(), halves(table_pool())[0] if pool is None else tuple(pool)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SAMPLES
    done = len(noted(path))
    progress.start("measure", sets, "sets")
    with one_thread(device):
        for number in range(done, sets):
            line = measured(drawn(number, tables), device, number)
            note(path, line)
            progress.advance(number + 1, ms=f"{1e3 * line['seconds']:.3g}")
    progress.finish()
    progress.start("fit", EPOCHS, "epochs")
    network = fit(samples(noted(path)[:sets]), origin(device), epochs=EPOCHS, step=progress.advance)
    progress.finish()
    network.save(folder / NETWORK)
    return network


def noted(path: Path) -> list[dict[str, Any]]:
    """The measured sets in a file, which need not be there; a last line that was being written is cut off."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    return [json.loads(line) for line in whole.splitlines()]


def note(path: Path, line: dict[str, Any]) -> None:
    """Add a measured set to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def samples(lines: Sequence[dict[str, Any]]) -> list[Sample]:
    """What a cost network is fitted to."""
    return [Sample(np.array(line["features"]), line["seconds"]) for line in lines]


def drawn(number: int, tables: Sequence[PoolTable]) -> Draw:
    """The set of that number: one to 128 tables, 256 to 4,096 examples, any optimizer."""
    draw = np.random.default_rng([number, len(tables)])
    while True:
        count = round(2 ** draw.uniform(0, 7))
        chosen = tuple((tables[int(place)], int(draw.choice(DIMS))) for place in draw.integers(0, len(tables), count))
        found = Draw(chosen, round(2 ** draw.uniform(8, 12)), str(draw.choice([*OPTIMIZERS])))
        if found.bytes <= MOST_BYTES and found.examples * sum(t.ids_per_row for t, _ in chosen) <= MOST_IDS:
            return found


def measured(draw: Draw, device: torch.device, seed: int = 0, repeats: int = 5) -> dict[str, Any]:
    """Features and median seconds of a set."""
    steps = draw.steps(2, np.random.default_rng(seed))
    seconds = statistics.median(kernel_seconds(steps, draw.optimizer, device, repeats))
    return {"features": draw.features, "seconds": seconds}


def origin(device: torch.device) -> dict[str, Any]:
    """Where and with what a network was measured."""
    engine = {"torch": torch.__version__, "fbgemm": versions.FBGEMM, "ziggurat": __version__}
    return {
        "machine": machine_name(device),
        "kind": device.type,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": engine,
    }


@contextlib.contextmanager
def one_thread(device: torch.device) -> Generator[None]:
    """Measures as a rank works that has a core; of a CPU only."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
        keep_freed_memory(2**31 - 1)  # most of the time would go into fresh pages for tables
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _bags(table: PoolTable, columns: int, examples: int, draw: np.random.Generator) -> Bags:
    ids, lengths = table.ids(examples, draw)
    return Bags(table.rows, columns, torch.from_numpy(ids), torch.from_numpy(lengths))

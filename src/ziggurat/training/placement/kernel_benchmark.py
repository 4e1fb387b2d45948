"""Measures what fused look-ups cost on this machine, and learns it: the measured part of planning.

Sets of tables are drawn from the synthetic pool (:mod:`~ziggurat.planning.autoshard.pool`), run for real
(:mod:`~ziggurat.embeddings.kernel_time`) and noted one by one, so that an interrupted measurement goes on; a cost
network is fitted to them at the end.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ziggurat._version import __version__
from ziggurat.core import versions
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.files import write_json
from ziggurat.core.plan import Span
from ziggurat.core.progress import Progress, Silent
from ziggurat.embeddings.kernel_time import OPTIMIZERS, Bags, kernel_seconds, lower_quartile
from ziggurat.planning.autoshard.cost_network import CostNetwork, CostSample, fit
from ziggurat.planning.autoshard.learned import NETWORK
from ziggurat.planning.autoshard.pool import DIMS, PoolTable, table_pool, train_test_halves
from ziggurat.planning.autoshard.weights import VERSION
from ziggurat.planning.cost import FLOAT, state_bytes
from ziggurat.training.malloc_tuning import keep_freed_memory
from ziggurat.training.placement.cost_cache import machine_name

SETS = 2000
"""Sets of tables that are measured: some ten minutes of one core."""
MOST_BYTES, MOST_IDS = 2 * 10**9, 6 * 10**6
"""Of a set, weights and ids of a batch: larger ones are not drawn."""
EPOCHS = 300
SAMPLES, PLACEMENTS, MEASURED_ON = "samples.jsonl", "placements.jsonl", "measured_on.json"
"""What lies in a folder of measurements: drawn sets, devices of a planner's plans, and by what both were measured."""


ROW_PARTS = (2, 3, 4, 6, 8)
"""Of tables that are drawn, some are ranges of rows, one of so many."""
IN_ROWS = 0.3
"""Share of tables that are drawn so."""


@dataclass(frozen=True)
class TableRange:
    """A table of the pool, or a range of its rows or columns.

    Attributes:
        table: of the pool.
        rows: those that are here.
        columns: so many are here.
    """

    table: PoolTable
    rows: Span
    columns: int

    def asked(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Bags:
        """What is asked of it where the table is asked for these ids, so many an example."""
        ids, lengths = within(self.rows, ids, lengths)
        return Bags(self.rows.size, self.columns, torch.from_numpy(ids), torch.from_numpy(lengths))


def within(
    rows: Span, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The ids that lie in a range of rows, counted from its first, and how many each bag has of them."""
    here = (ids >= rows.first) & (ids < rows.first + rows.size)
    bags = np.repeat(np.arange(len(lengths)), lengths)[here]
    return ids[here] - rows.first, np.bincount(bags, minlength=len(lengths))


@dataclass(frozen=True)
class Draw:
    """What a device looks up in a step.

    Attributes:
        parts: tables, whole or not.
        examples: of the step.
        optimizer: of all tables.
    """

    parts: tuple[TableRange, ...]
    examples: int
    optimizer: str

    @property
    def bytes(self) -> int:
        """Of weights and optimizer states."""
        return sum(
            FLOAT * part.rows.size * part.columns + state_bytes({"name": self.optimizer}, part.rows.size, part.columns)
            for part in self.parts
        )

    @property
    def features(self) -> list[list[float]]:
        """What the network sees of each table."""
        described = (p.table.feature_vector(p.columns, self.examples, self.optimizer, p.rows) for p in self.parts)
        return [each.round(6).tolist() for each in described]

    def steps(self, number: int, draw: np.random.Generator) -> list[list[Bags]]:
        """What is asked for in so many steps."""
        return [[part.asked(*part.table.ids(self.examples, draw)) for part in self.parts] for _ in range(number)]


def measure(
    folder: Path,
    device: torch.device,
    sets: int = SETS,
    progress: Progress | None = None,
    pool: Sequence[PoolTable] | None = None,
) -> CostNetwork:
    """The cost network of this machine, measured into ``folder``; what lies there of an earlier call is not repeated.

    Args:
        folder: for :data:`SAMPLES`, a line a set, :data:`MEASURED_ON`, and ``network.safetensors``, which is fitted to
            all sets that were ever measured there.
        device: a CPU, one thread of which is measured, as a rank of several has, or a CUDA device.
        sets: how many, at least some hundreds to be of use.
        progress: where to show it.
        pool: tables to draw from; default: the half of the pool that is for learning.

    Raises:
        ConfigError: the folder has measurements of another machine, or of another engine.
    """
    progress, tables = progress or Silent(), train_test_halves(table_pool())[0] if pool is None else tuple(pool)
    begun(folder, device)
    path = folder / SAMPLES
    done = len(noted(path))
    progress.start("measure", max(sets, done), "sets")
    progress.advance(done)
    with one_thread(device):
        for number in range(done, sets):
            line = measured(drawn(number, tables), device, number)
            note(path, line)
            progress.advance(number + 1, ms=f"{1e3 * line['seconds']:.3g}")
    progress.finish()
    return fitted(folder, device, progress)


def begun(folder: Path, device: torch.device) -> dict[str, Any]:
    """Where and with what the measurements in a folder were begun; where there are none, they begin here and now.

    Raises:
        ConfigError: they are of another machine, or of another engine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, now = folder / MEASURED_ON, {**origin(device), "weights": VERSION}
    if path.is_file():
        there: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    elif any((folder / name).is_file() for name in (SAMPLES, PLACEMENTS)):
        there = {}
    else:
        write_json(path, now)
        return now
    if _engine(there) != _engine(now):
        by = _engine(there) or "an older ziggurat"
        raise ConfigError(
            f"{folder}: what lies there was measured by {by}; here is {_engine(now)}",
            f"name another folder, or remove {SAMPLES}, {PLACEMENTS} and {MEASURED_ON} there to measure anew",
        )
    return there


def _engine(origin: Mapping[str, Any]) -> str:
    """What measurements must have in common to be learned from together."""
    if not origin:
        return ""
    versions = origin["versions"]
    return f"{origin['machine']}, torch {versions['torch']}, fbgemm {versions['fbgemm']}, format {origin['weights']}"


def fitted(folder: Path, device: torch.device, progress: Progress) -> CostNetwork:
    """The network in ``folder``, fitted again if more was measured since."""
    lines = noted(folder / SAMPLES) + noted(folder / PLACEMENTS)
    path = folder / NETWORK
    with contextlib.suppress(DataError, FileNotFoundError):  # of an older ziggurat, or not there yet
        network = CostNetwork.load(path)
        if network.origin.get("sets") == len(lines):
            return network
    progress.start("fit", EPOCHS, "epochs")
    there = begun(folder, device)
    about = {key: there[key] for key in ("machine", "kind", "date", "versions")} | {"sets": len(lines)}
    network = fit(samples(lines), about, epochs=EPOCHS, on_epoch=progress.advance)
    progress.finish()
    network.save(path)
    return network


def noted(path: Path) -> list[dict[str, Any]]:
    """The measured sets in a file, which need not be there; a last line that was being written is cut off.

    Raises:
        DataError: another line is damaged.
    """
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    lines: list[dict[str, Any]] = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            lines.append(json.loads(line))
        except ValueError as error:
            raise DataError(f"{path}, line {number}: is damaged: {error}", "delete that line") from None
    return lines


def note(path: Path, line: dict[str, Any]) -> None:
    """Add a measured set to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def samples(lines: Sequence[dict[str, Any]]) -> list[CostSample]:
    """What a cost network is fitted to."""
    return [CostSample(np.array(line["features"]), line["seconds"]) for line in lines]


def drawn(number: int, tables: Sequence[PoolTable]) -> Draw:
    """The set of that number: one to 128 tables or parts of them, 256 to 4,096 examples, any optimizer."""
    draw = np.random.default_rng([number, len(tables)])
    while True:
        count = round(2 ** draw.uniform(0, 7))
        parts = tuple(_part(tables[int(place)], draw) for place in draw.integers(0, len(tables), count))
        found = Draw(parts, round(2 ** draw.uniform(8, 12)), str(draw.choice([*OPTIMIZERS])))
        ids = found.examples * sum(part.table.ids_per_row * part.rows.size / part.table.rows for part in parts)
        if found.bytes <= MOST_BYTES and ids <= MOST_IDS:
            return found


def _part(table: PoolTable, draw: np.random.Generator) -> TableRange:
    columns, parts = int(draw.choice(DIMS)), int(draw.choice(ROW_PARTS))
    if draw.random() >= IN_ROWS or table.rows < parts:
        return TableRange(table, Span(0, table.rows), columns)
    size, place = table.rows // parts, int(draw.integers(parts))
    return TableRange(table, Span(place * size, size), columns)


def measured(draw: Draw, device: torch.device, seed: int = 0, repeats: int = 9) -> dict[str, Any]:
    """Features of a set, and what a call takes that nothing disturbs."""
    steps = draw.steps(2, np.random.default_rng(seed))
    seconds = lower_quartile(kernel_seconds(steps, draw.optimizer, device, repeats))
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

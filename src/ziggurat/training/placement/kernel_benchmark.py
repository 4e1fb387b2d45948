"""Measures the cost of fused lookups on this machine and fits a cost network to it.

Sets of tables are drawn from the synthetic pool (:mod:`~ziggurat.planning.autoshard.pool`) and measured
(:mod:`~ziggurat.embeddings.kernel_time`). Each result is stored when it is complete, so an interrupted measurement
resumes. The cost network is fitted at the end.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from ziggurat._version import __version__
from ziggurat.core import versions
from ziggurat.core.errors import ConfigError, DataError, shorten, unknown_name
from ziggurat.core.files import write_json
from ziggurat.core.plan import Span
from ziggurat.core.progress import Progress, Silent
from ziggurat.core.untrusted import Damage, as_object, parse_json, read_bytes, read_json_object
from ziggurat.embeddings.kernel_time import OPTIMIZERS, Bags, kernel_seconds, lower_quartile
from ziggurat.planning.autoshard.cost_network import CostNetwork, CostSample, fit
from ziggurat.planning.autoshard.features import FEATURES
from ziggurat.planning.autoshard.learned import NETWORK
from ziggurat.planning.autoshard.pool import DIMS, PoolTable, table_pool, train_test_halves
from ziggurat.planning.autoshard.weights import VERSION
from ziggurat.planning.cost import FLOAT, state_bytes
from ziggurat.training.malloc_tuning import keep_freed_memory
from ziggurat.training.placement.cost_cache import machine_name
from ziggurat.training.process_group import pick_device

SETS = 2000
"""Default number of sets of tables to measure, which takes about ten minutes on one core."""
MAX_BYTES, MAX_IDS = 2 * 10**9, 6 * 10**6
"""Limits on a set's weights and optimizer states, and on its ids per batch; larger sets are not drawn."""
EPOCHS = 300
_DEVICES = ("auto", "cpu", "cuda")
SAMPLES, PLACEMENTS, MEASURED_ON = "samples.jsonl", "placements.jsonl", "measured_on.json"
"""Files in a folder of measurements: drawn sets, devices of a planner's plans, and the setup that measured both."""


ROW_SPLITS = (2, 3, 4, 6, 8)
"""Numbers of equal row ranges of which one is drawn in place of a complete table."""
ROW_RANGE_SHARE = 0.3
"""Share of drawn tables that are replaced by one of their row ranges."""


@dataclass(frozen=True)
class TableRange:
    """A table of the pool, or a range of its rows or columns.

    Attributes:
        table: the table of the pool.
        rows: the range of its rows.
        columns: the number of its columns.
    """

    table: PoolTable
    rows: Span
    columns: int

    def bags(self, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Bags:
        """Returns the lookups of the range for lookups of the complete table.

        Args:
            ids: the ids that are looked up in the table.
            lengths: number of ids per example.
        """
        ids, lengths = ids_in_range(self.rows, ids, lengths)
        return Bags(self.rows.size, self.columns, torch.from_numpy(ids), torch.from_numpy(lengths))


def ids_in_range(
    rows: Span, ids: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Returns the ids in a range of rows, counted from its first row, and the number of them per bag."""
    inside = (ids >= rows.first) & (ids < rows.first + rows.size)
    bags = np.repeat(np.arange(len(lengths)), lengths)[inside]
    return ids[inside] - rows.first, np.bincount(bags, minlength=len(lengths))


@dataclass(frozen=True)
class LookupSet:
    """The lookups of one device in a step.

    Attributes:
        parts: the tables, or ranges of tables.
        examples: number of examples per step.
        optimizer: the optimizer of all tables.
    """

    parts: tuple[TableRange, ...]
    examples: int
    optimizer: str

    @property
    def bytes(self) -> int:
        """Bytes of weights and optimizer states."""
        return sum(
            FLOAT * part.rows.size * part.columns + state_bytes({"name": self.optimizer}, part.rows.size, part.columns)
            for part in self.parts
        )

    @property
    def features(self) -> list[list[float]]:
        """The cost network's features of each table."""
        vectors = (
            part.table.feature_vector(part.columns, self.examples, self.optimizer, part.rows) for part in self.parts
        )
        return [vector.round(6).tolist() for vector in vectors]

    def draw_steps(self, number: int, random: np.random.Generator) -> list[list[Bags]]:
        """Draws the lookups of ``number`` steps."""
        return [[part.bags(*part.table.ids(self.examples, random)) for part in self.parts] for _ in range(number)]


def measure(
    folder: str | Path,
    device: Literal["auto", "cpu", "cuda"] | torch.device,
    sets: int = SETS,
    progress: Progress | None = None,
    pool: Sequence[PoolTable] | None = None,
) -> CostNetwork:
    """Measures sets of tables and returns the cost network of this machine; sets measured earlier are not repeated.

    Args:
        folder: the folder for :data:`SAMPLES`, with a line per set, :data:`MEASURED_ON` and ``network.safetensors``.
            The network is fitted to all sets that were ever measured there.
        device: a CUDA device, or a CPU, of which one thread is measured; ``auto`` takes a CUDA device if there is one.
        sets: total number of sets; a useful network needs several hundreds.
        progress: where to show progress.
        pool: the tables to draw from; default: the training half of the pool.

    Raises:
        ConfigError: the folder holds measurements of another machine or with other library versions, or there is no
            such device.
        EnvironmentMismatch: there is no CUDA device.
    """
    progress, tables = progress or Silent(), train_test_halves(table_pool())[0] if pool is None else tuple(pool)
    folder = Path(folder)
    if not isinstance(device, torch.device):
        if device not in _DEVICES:
            raise unknown_name("device", device, _DEVICES)
        device = pick_device(device)
    ensure_origin(folder, device)
    path = folder / SAMPLES
    done = len(read_json_lines(path))
    progress.start("measure", max(sets, done), "sets")
    progress.advance(done)
    with single_threaded(device):
        for number in range(done, sets):
            line = measure_set(draw_set(number, tables), device, number)
            append_json_line(path, line)
            progress.advance(number + 1, ms=f"{1e3 * line['seconds']:.3g}")
    progress.finish()
    return fit_network(folder, device, progress)


def ensure_origin(folder: Path, device: torch.device) -> dict[str, Any]:
    """Returns the machine and versions of the measurements in a folder; records the present ones in a new folder.

    Raises:
        ConfigError: the measurements were made on another machine or with other library versions.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path, now = folder / MEASURED_ON, {**current_origin(device), "weights": VERSION}
    stored: dict[str, Any] = {}
    if os.path.lexists(path):
        damage = Damage(DataError, f"remove {SAMPLES}, {PLACEMENTS} and {MEASURED_ON} there to measure again")
        stored = read_json_object(path, damage)
        for key in ("machine", "kind", "date", "versions", "weights"):
            expected = int if key == "weights" else dict if key == "versions" else str
            if not isinstance(stored.get(key), expected):
                raise damage.of(path, f"{key} is {shorten(stored.get(key))}")
    elif not any((folder / name).is_file() for name in (SAMPLES, PLACEMENTS)):
        write_json(path, now)
        return now
    if _comparable_part(stored) != _comparable_part(now):
        by = _comparable_part(stored) or "an older ziggurat"
        raise ConfigError(
            f"{folder}: was measured by {by}; here is {_comparable_part(now)}",
            f"name another folder, or remove {SAMPLES}, {PLACEMENTS} and {MEASURED_ON} there to measure again",
        )
    return stored


def _comparable_part(origin: Mapping[str, Any]) -> str:
    """Returns what all measurements of one cost network must have in common; empty if unknown."""
    if not origin:
        return ""
    there = origin["versions"]
    return f"{origin['machine']}, torch {there.get('torch')}, fbgemm {there.get('fbgemm')}, format {origin['weights']}"


def fit_network(folder: Path, device: torch.device, progress: Progress) -> CostNetwork:
    """Returns the cost network in ``folder``; fits it again if there are new measurements."""
    lines = read_json_lines(folder / SAMPLES) + read_json_lines(folder / PLACEMENTS)
    path = folder / NETWORK
    with contextlib.suppress(DataError, FileNotFoundError):  # written by an older ziggurat, or not yet
        network = CostNetwork.load(path)
        if network.origin.get("sets") == len(lines):
            return network
    progress.start("fit", EPOCHS, "epochs")
    stored = ensure_origin(folder, device)
    origin = {key: stored[key] for key in ("machine", "kind", "date", "versions")} | {"sets": len(lines)}
    network = fit(cost_samples(lines), origin, epochs=EPOCHS, on_epoch=progress.advance)
    progress.finish()
    network.save(path)
    return network


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """Returns the records of a file with a JSON object per line, if it exists. Removes an incomplete last line.

    Raises:
        DataError: another line is damaged, or it is no regular file.
    """
    damage = Damage(DataError, "delete that line")
    try:
        text = read_bytes(path, Damage(DataError, "delete it to measure again"))
    except FileNotFoundError:
        return []
    complete = text[: text.rfind(b"\n") + 1]
    if complete != text:
        path.write_bytes(complete)
    places = ((f"{path}, line {number}", line) for number, line in enumerate(complete.splitlines(), 1))
    return [as_object(parse_json(line, place, damage), place, damage) for place, line in places]


def append_json_line(path: Path, line: dict[str, Any]) -> None:
    """Appends a record to a file."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def cost_samples(lines: Sequence[dict[str, Any]]) -> list[CostSample]:
    """Returns the samples that a cost network is fitted to.

    Raises:
        DataError: a line has no features or no seconds.
    """
    return [_cost_sample(line, number) for number, line in enumerate(lines, 1)]


def _cost_sample(line: Mapping[str, Any], number: int) -> CostSample:
    seconds: Any = line.get("seconds")
    features: Any
    try:
        features = np.array(line.get("features"), np.float64)
    except (ValueError, TypeError, OverflowError):
        features = np.zeros(0)
    is_valid = features.ndim == 2 and features.shape[1] == FEATURES and np.isfinite(features).all()
    if not is_valid or type(seconds) not in {int, float} or not 0 < seconds < math.inf:
        raise DataError(
            f"measurement {number} of {SAMPLES} and {PLACEMENTS}: has no features or no seconds: {shorten(dict(line))}",
            "delete its line",
        )
    return CostSample(features, float(seconds))


def draw_set(number: int, tables: Sequence[PoolTable]) -> LookupSet:
    """Draws the set of a number, always the same: 1 to 128 tables or ranges, 256 to 4,096 examples, any optimizer."""
    random = np.random.default_rng([number, len(tables)])
    while True:
        count = round(2 ** random.uniform(0, 7))
        parts = tuple(_draw_range(tables[int(index)], random) for index in random.integers(0, len(tables), count))
        drawn = LookupSet(parts, round(2 ** random.uniform(8, 12)), str(random.choice([*OPTIMIZERS])))
        ids = drawn.examples * sum(part.table.ids_per_row * part.rows.size / part.table.rows for part in parts)
        if drawn.bytes <= MAX_BYTES and ids <= MAX_IDS:
            return drawn


def _draw_range(table: PoolTable, random: np.random.Generator) -> TableRange:
    columns, ranges = int(random.choice(DIMS)), int(random.choice(ROW_SPLITS))
    if random.random() >= ROW_RANGE_SHARE or table.rows < ranges:
        return TableRange(table, Span(0, table.rows), columns)
    size, index = table.rows // ranges, int(random.integers(ranges))
    return TableRange(table, Span(index * size, size), columns)


def measure_set(lookups: LookupSet, device: torch.device, seed: int = 0, repeats: int = 9) -> dict[str, Any]:
    """Returns the features of a set, and the seconds of a call without other load on the machine."""
    steps = lookups.draw_steps(2, np.random.default_rng(seed))
    seconds = lower_quartile(kernel_seconds(steps, lookups.optimizer, device, repeats))
    return {"features": lookups.features, "seconds": seconds}


def current_origin(device: torch.device) -> dict[str, Any]:
    """Returns the machine, date and library versions of measurements made now."""
    engine = {"torch": torch.__version__, "fbgemm": versions.FBGEMM, "ziggurat": __version__}
    return {
        "machine": machine_name(device),
        "kind": device.type,
        "date": datetime.now(UTC).date().isoformat(),
        "versions": engine,
    }


@contextlib.contextmanager
def single_threaded(device: torch.device) -> Generator[None]:
    """Limits torch to one thread within the context if ``device`` is a CPU, as for a rank that has one core."""
    threads = torch.get_num_threads()
    if device.type == "cpu":
        torch.set_num_threads(1)
        keep_freed_memory(2**31 - 1)  # otherwise most of the time goes into fresh pages for tables
    try:
        yield
    finally:
        torch.set_num_threads(threads)

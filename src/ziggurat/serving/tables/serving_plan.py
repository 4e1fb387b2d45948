"""Plans where the tables of an export are while it is served: in memory, or on disk behind caches."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.digests import each_tensor
from ziggurat.core.errors import ConfigError
from ziggurat.features.saved_transform import SavedTransform
from ziggurat.serving.artefact.damage import DAMAGED
from ziggurat.serving.artefact.manifest import STATISTICS_FILE, TRANSFORM, Manifest, TableEntry
from ziggurat.serving.artefact.row_codec import row_bytes
from ziggurat.serving.tables.lookup import READS_OF_A_LOOKUP, READS_OF_A_TABLE
from ziggurat.serving.tables.placement import Demand, Frequencies, Placed, place
from ziggurat.serving.tables.row_cache import stride_of


@dataclass(frozen=True, slots=True)
class TableMemory:
    """The memory that tables may take, and how those are read that it does not hold.

    Attributes:
        bytes: memory for tables and caches, of all workers together.
        candidates: rows that a request has to rank on average.
        pooled_bytes: the part of it for pooled rows of long bags.
        pooled_longer_than: bags of more ids than this are kept there.
        pooled_any_order: whether a bag whose ids came in another order is the same bag; its sum may then differ in its
            last bits.
        dequantise: whether rows of tables in memory are kept as float32, which takes more memory and less time.
        reads_of_a_table, reads_of_a_request: reads of the disk that a batch has in flight at a time, of one table and
            altogether.
    """

    bytes: int
    candidates: int = 100
    pooled_bytes: int = 0
    pooled_longer_than: int = 16
    pooled_any_order: bool = False
    dequantise: bool = False
    reads_of_a_table: int = READS_OF_A_TABLE
    reads_of_a_request: int = READS_OF_A_LOOKUP

    def __post_init__(self) -> None:
        if not 0 <= self.pooled_bytes < max(1, self.bytes):
            raise ConfigError(
                f"--pooled-cache {self.pooled_bytes:,} bytes of --memory {self.bytes:,} bytes",
                "give the pooled rows a part of the memory",
            )


@dataclass(frozen=True, slots=True)
class TablePlan:
    """Where a table is.

    Attributes:
        entry: the table.
        file_bytes: bytes of its file.
        placed: its demand, its memory, its expected hits and reads.
        pooled_bytes: memory for the pooled rows of its long bags.
    """

    entry: TableEntry
    file_bytes: int
    placed: Placed
    pooled_bytes: int = 0

    @property
    def is_on_disk(self) -> bool:
        return self.placed.cache_bytes is not None

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return "disk" if self.is_on_disk else "memory"


@dataclass(frozen=True, slots=True)
class ServingPlan:
    """Where the tables of an export are.

    Attributes:
        manifest: the export.
        options: the memory.
        tables: the tables, in the order of the manifest.
    """

    manifest: Manifest
    options: TableMemory
    tables: tuple[TablePlan, ...]

    @property
    def table_bytes(self) -> int:
        """Bytes of the tables' files."""
        return sum(table.file_bytes for table in self.tables)

    @property
    def memory_bytes(self) -> int:
        """Bytes of memory for tables and caches."""
        return sum(table.placed.memory_bytes + table.pooled_bytes for table in self.tables)

    @property
    def lookups(self) -> float:
        """Rows that a request looks up."""
        return sum(table.placed.demand.lookups for table in self.tables)

    @property
    def reads(self) -> float:
        """Reads of the disk that a request is expected to need."""
        return sum(table.placed.reads for table in self.tables)

    def to_json(self) -> dict[str, Any]:
        """Returns the plan for programs."""
        return {
            "memory_bytes": self.options.bytes,
            "used_bytes": self.memory_bytes,
            "table_bytes": self.table_bytes,
            "candidates": self.options.candidates,
            "lookups_per_request": self.lookups,
            "reads_per_request": self.reads,
            "tables": [
                {
                    "name": table.entry.name,
                    "side": table.entry.side,
                    "rows": table.entry.rows,
                    "dim": table.entry.dim,
                    "file_bytes": table.file_bytes,
                    "place": table.place,
                    "memory_bytes": table.placed.memory_bytes,
                    "pooled_bytes": table.pooled_bytes,
                    "lookups_per_request": table.placed.demand.lookups,
                    "hit_rate": table.placed.hits,
                    "reads_per_request": table.placed.reads,
                }
                for table in self.tables
            ],
        }


def plan_tables(folder: Path, manifest: Manifest, options: TableMemory) -> ServingPlan:
    """Plans where tables are, by how often the training data looked up each of their rows.

    Raises:
        ConfigError: the memory does not suffice for the smallest caches, or no table on disk has bags to pool.
        DataError: the statistics are damaged.
    """
    stored = manifest.files.get(STATISTICS_FILE)
    frequencies: dict[str, Frequencies | None] = {}
    if stored is not None:
        rows = {entry.name: entry.rows for entry in manifest.tables}
        for name, counts_R in each_tensor(folder / STATISTICS_FILE, stored.checksum, DAMAGED, names=rows):
            frequencies[name] = Frequencies.of(counts_R) if len(counts_R) == rows[name] else None
            del counts_R  # before those of the next table are read
    of_context = _context_inputs(folder, manifest)
    lookups = {entry.name: _lookups(entry, of_context, options.candidates) for entry in manifest.tables}
    demands: list[Demand] = []
    for entry in manifest.tables:
        in_memory = "fp32" if options.dequantise else manifest.precision
        demands.append(
            Demand(
                entry.name,
                entry.rows,
                stride_of(row_bytes(entry.dim, manifest.precision)),
                entry.rows * row_bytes(entry.dim, in_memory),
                sum(lookups[entry.name].values()),
                frequencies.get(entry.name),
            )
        )
    placed = place(demands, options.bytes - options.pooled_bytes)
    tables = [
        TablePlan(entry, entry.layout(manifest.precision).bytes, each)
        for entry, each in zip(manifest.tables, placed, strict=True)
    ]
    return ServingPlan(manifest, options, tuple(_with_pooled(tables, options, lookups)))


def _context_inputs(folder: Path, manifest: Manifest) -> set[str]:
    """Returns the inputs that a request gives once for all its candidates, also where they share a table with others.

    Raises:
        DataError: the transform is damaged.
    """
    features = SavedTransform.open(folder / TRANSFORM).features
    of_user = {each.name for each in features if set(manifest.user_columns).issuperset(each.log_columns)}
    return {name for name in manifest.inputs if manifest.feature_of[name] in of_user}


def _lookups(entry: TableEntry, of_context: Collection[str], candidates: int) -> dict[str, float]:
    """Returns input -> rows of a table that a request looks up for it."""
    once = entry.features if entry.side == "user" else of_context
    return {name: entry.lookups.get(name, 1.0) * (1 if name in once else candidates) for name in entry.features}


def _with_pooled(
    tables: list[TablePlan], options: TableMemory, lookups: Mapping[str, Mapping[str, float]]
) -> list[TablePlan]:
    """Divides memory for pooled rows among tables on disk that bags look up, by their look-ups."""
    if not options.pooled_bytes:
        return tables
    of_bags = [_of_bags(table.entry, lookups[table.entry.name]) if table.is_on_disk else 0 for table in tables]
    total = sum(of_bags)
    if not total and any(table.is_on_disk for table in tables):
        raise ConfigError("--pooled-cache: no table on disk has bags of several ids", "leave it out")
    return [
        TablePlan(table.entry, table.file_bytes, table.placed, int(options.pooled_bytes * part / total) if total else 0)
        for table, part in zip(tables, of_bags, strict=True)
    ]


def _of_bags(entry: TableEntry, lookups: Mapping[str, float]) -> float:
    """Returns the look-ups of a request that become one with others."""
    several = {name for name, each in entry.lookups.items() if each > 1}.difference(entry.positions)
    return sum(each for name, each in lookups.items() if name in several)

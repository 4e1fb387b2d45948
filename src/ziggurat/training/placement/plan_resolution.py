"""Which plan a world of ranks gets."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.numpy import load_file, save_file

from ziggurat.core.errors import ConfigError, InvalidSection
from ziggurat.core.files import atomic_file, write_json
from ziggurat.core.plan import Plan
from ziggurat.core.progress import Progress
from ziggurat.core.row_order import FrequencyRanks, frequency_ranks
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import DeviceKind, Topology
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.world import World
from ziggurat.planning import plan_tables
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.constraints import check_plan
from ziggurat.planning.offload import Need, row_traffic_bytes, with_slots, without_slots
from ziggurat.planning.usage import Usage
from ziggurat.storage.row_log import LOG_BYTES_PER_ROW_BYTE
from ziggurat.storage.tier_benchmark import disk_tiers
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement.batch_needs import batch_needs
from ziggurat.training.placement.cost_cache import with_measured
from ziggurat.training.placement.shard_benchmark import parts_timer, unmeasured
from ziggurat.training.placement.topology import resolve_topology

PLAN_FILE = "plan.json"
ROW_ORDER_FILE = "row_order.safetensors"
"""Table -> rank of each of its rows by falling frequency, int32; of tables whose rows the plan orders."""
MEASURE_S, MEASURED_BYTES = 0.2, 2**27
"""Seconds that each figure of a disk is measured for a plan, and bytes of the file that it is measured on, at most."""


def place(
    experiment: Experiment,
    layout: Layout,
    world: World,
    kind: DeviceKind,
    prepared: Path,
    folder: Path,
    *,
    leave: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """The plan of a run: the one that lies in its folder if it is for this world, else a new one.

    The first rank plans and tells the others: measured bandwidths differ from one measurement to the next.

    Args:
        experiment: whose ``planning`` section counts.
        layout: of its tables.
        world: that trains.
        kind: of each rank's device.
        prepared: folder of the encoded dataset, with its statistics.
        folder: of the run.
        leave: whether the plan is left there, for the run to go on with; if not, nothing is measured for it.
        progress: where a planner that measures shows it.

    Raises:
        ConfigError: ``planning`` asks for what cannot be.
        NoFeasiblePlan: the devices have no room; the message says what would have.
    """

    def made() -> Plan:
        plan = Plan.single_device(table.name for table in layout.tables)
        if world.size > 1:
            tables, found = layout.tables, experiment.planning.topology
            topology = resolve_topology(found, kind, hosts=world.hosts, devices=world.local_size)
            topology = with_disk(experiment.planning, topology, folder, tables)
            batch_size = -(-experiment.training.batch_size // world.size)
            statistics = DatasetStatistics.load(prepared)
            lying = _lying(folder / PLAN_FILE, layout, topology)
            config = with_measured(experiment.planning if leave else unmeasured(experiment.planning), kind)
            timer = parts_timer(config, kind)
            plan = lying or plan_tables(tables, statistics, topology, config, batch_size, timer, progress).plan
        plan = slots_for(experiment, layout.tables, plan, kind, prepared)
        if leave:
            write_json(folder / PLAN_FILE, plan.to_json())
        return plan

    return on_first_rank(made)


def slots_for(
    experiment: Experiment, tables: Sequence[TableSpec], plan: Plan, kind: DeviceKind, prepared: Path | None = None
) -> Plan:
    """``plan``, with slots for tables that memory has no room for, where ``planning.beyond_memory`` says so.

    Args:
        experiment: the config.
        tables: of the model.
        plan: who holds what.
        kind: of each rank's device.
        prepared: folder of the encoded dataset, which says what batches look up; None: nothing is known, and a batch
            that is too large for memory is to be cut.

    Raises:
        ConfigError: tables cannot be larger than memory here.
        NoFeasiblePlan: memory has too little room even so.
    """
    config = experiment.planning.beyond_memory
    if config is None:  # it may have been another when the plan was made
        return without_slots(plan)
    if kind != "cpu":
        raise ConfigError(
            "planning.beyond_memory: tables larger than memory are trained on the CPU only so far",
            "set training.device: cpu, or leave planning.beyond_memory out",
        )
    if prepared is None:
        statistics, examples, needs = None, 1, [Need(1, "an example", "model")]
    else:
        statistics, examples = DatasetStatistics.load(prepared), experiment.training.batch_size
        needs = batch_needs(experiment, Dataset(prepared), plan.world_size)
    usages = {table.name: Usage.of(table, statistics) for table in tables}
    return with_slots(plan, tables, usages, examples, needs, float(config.memory))


def rows_beyond(experiment: Experiment, plan: Plan, run: Path, *, elsewhere: bool = False) -> OffloadFolder | None:
    """Where the rows lie that memory has no room for; None where it has room for all.

    Args:
        experiment: the config, which may name a folder.
        plan: of it.
        run: folder of the run, where they lie otherwise.
        elsewhere: in the system's folder for temporary files where nobody may write there, as with a run that is used
            and not trained.
    """
    config = experiment.planning.beyond_memory
    if config is None or all(placement.slots is None for placement in plan.placements.values()):
        return None
    folder = config.folder or run
    return OffloadFolder(Path(tempfile.gettempdir()) if elsewhere and not os.access(folder, os.W_OK) else folder)


def row_ranks(
    plan: Plan, layout: Layout, prepared: Path, folder: Path, *, leave: bool = True
) -> dict[str, FrequencyRanks]:
    """Of each table whose rows ``plan`` orders, the rank of each row by falling frequency in the training rows: those
    that lie in the run's folder, else new ones. All ranks call it together.

    Args:
        plan: of the run.
        layout: of its tables.
        prepared: folder of the encoded dataset, with its statistics.
        folder: of the run.
        leave: whether new ones are left there.
    """
    rows = {spec.name: spec.rows for spec in layout.tables if plan.placements[spec.name].fast_rows is not None}
    if not rows:
        return {}
    path = folder / ROW_ORDER_FILE

    def left_there() -> None:
        if _read_ranks(path, rows) is None:
            with atomic_file(path) as temporary:
                save_file(_counted_ranks(rows, prepared), temporary)

    if leave:
        on_first_rank(left_there)
    return _read_ranks(path, rows) or _counted_ranks(rows, prepared)


def _counted_ranks(rows: Mapping[str, int], prepared: Path) -> dict[str, FrequencyRanks]:
    tables = DatasetStatistics.load(prepared).tables
    counted = {name: tables[name].accesses if name in tables else None for name in rows}
    return {name: frequency_ranks(accesses, rows[name]) for name, accesses in counted.items()}


def _read_ranks(path: Path, rows: Mapping[str, int]) -> dict[str, FrequencyRanks] | None:
    """What :func:`row_ranks` left, if it is of these tables."""
    if not path.is_file():
        return None
    found = load_file(path)
    return {name: found[name] for name in rows} if {k: len(v) for k, v in found.items()} == dict(rows) else None


def kind_of(device: torch.device) -> DeviceKind:
    """What a plan calls a device of ours."""
    return "cuda" if device.type == "cuda" else "cpu"


def with_disk(config: PlanningConfig, topology: Topology, run: Path, tables: Sequence[TableSpec]) -> Topology:
    """``topology``, whose devices have ``planning.beyond_memory.memory`` and an even share of the free disk, where that
    is asked for: as one memory, or for a planner that tells hot rows from cold, as a fast and a slow one.

    Args:
        config: the ``planning`` section.
        topology: of devices as they are.
        run: folder of the run, where rows lie unless the config names another.
        tables: whose rows move.

    Raises:
        ConfigError: the config declares a slow memory besides.
        DataError: how fast the disk is cannot be measured.
    """
    beyond = config.beyond_memory
    if beyond is None:
        return topology
    folder = (beyond.folder or run).absolute()
    there = next(place for place in (folder, *folder.parents) if place.is_dir())
    free = int(shutil.disk_usage(there).free / LOG_BYTES_PER_ROW_BYTE) // topology.devices
    memory, named = int(beyond.memory), f"{topology.device} and its disk"
    if not config.planner.uses_slow_memory:
        return replace(topology, device=named, memory_bytes=memory + free)
    if topology.slow_memory_bytes:
        raise ConfigError(
            "planning: both topology.slow_memory and beyond_memory are given, and rows lie in two places at most",
            "leave out one of them",
        )
    rate = (
        beyond.bandwidth or row_traffic_bytes(tables) * disk_tiers(there, MEASURE_S, max_bytes=MEASURED_BYTES)[0].reads
    )
    slow = min(rate / topology.devices, topology.lookup_bandwidth)
    return replace(topology, device=named, memory_bytes=memory, slow_memory_bytes=free, slow_bandwidth=slow)


def _lying(path: Path, layout: Layout, topology: Topology) -> Plan | None:
    """The run's plan, if it is for these tables and this world."""
    try:
        plan = Plan.from_json(json.loads(path.read_text(encoding="utf-8")))
        check_plan(plan, layout.tables, topology)
    except (FileNotFoundError, InvalidSection):
        return None
    return plan

"""Resolves the plan of a run, stored or new, with the cache slots and the row order that it needs."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping, Sequence
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
from ziggurat.planning.constraints import check_plan
from ziggurat.planning.offload import Need, with_slots, without_slots
from ziggurat.planning.planner import plan_problem
from ziggurat.planning.usage import Usage
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement.batch_needs import batch_needs
from ziggurat.training.placement.problem import planning_input
from ziggurat.training.placement.topology import resolve_topology

PLAN_FILE = "plan.json"
ROW_ORDER_FILE = "row_order.safetensors"
"""File with the ranks of rows by falling frequency, table -> int32 per row, for tables whose rows the plan orders."""


def resolve_plan(
    experiment: Experiment,
    layout: Layout,
    world: World,
    kind: DeviceKind,
    prepared: Path | None,
    folder: Path,
    *,
    keep: bool = True,
    progress: Progress | None = None,
) -> Plan:
    """Returns the plan of a run: the one stored in its folder if it is for this world, else a new one.

    The first rank plans and sends the plan to the others, because measured bandwidths differ between measurements.

    Args:
        experiment: the config; its ``planning`` section counts.
        layout: the layout of its tables.
        world: the ranks that train.
        kind: the kind of each rank's device.
        prepared: folder of the encoded dataset, with its statistics; None if there is none. One device then holds all
            tables.
        folder: the run folder.
        keep: whether the plan is stored in the run folder, where a resumed run finds it. If not, plans are not
            measured.
        progress: where a planner that measures shows its progress.

    Raises:
        ConfigError: the ``planning`` section contradicts itself or the devices.
        NoFeasiblePlan: the devices have too little memory; the message says how much is enough.
    """

    def make_plan() -> Plan:
        plan = Plan.single_device(table.name for table in layout.tables)
        if world.size > 1 and prepared is not None:
            config = experiment.planning.topology
            topology = resolve_topology(config, kind, hosts=world.hosts, devices=world.local_size)
            planning = planning_input(experiment, topology, layout.tables, prepared, folder, measure_plans=keep)
            stored = _stored_plan(folder / PLAN_FILE, layout, planning.problem.topology)
            plan = stored or plan_problem(planning.problem, planning.planner(progress)).plan
        plan = with_cache_slots(experiment, layout.tables, plan, kind, prepared)
        if keep:
            write_json(folder / PLAN_FILE, plan.to_json())
        return plan

    return on_first_rank(make_plan)


def with_cache_slots(
    experiment: Experiment, tables: Sequence[TableSpec], plan: Plan, kind: DeviceKind, prepared: Path | None = None
) -> Plan:
    """Returns ``plan`` with cache slots for the tables that memory cannot hold, if ``planning.beyond_memory`` is set.

    Args:
        experiment: the config.
        tables: the model's embedding tables.
        plan: the plan, with or without slots.
        kind: the kind of each rank's device.
        prepared: folder of the encoded dataset, from which the lookups of batches are counted. None if there is none:
            slots then suffice for one example, and larger batches must be split.

    Raises:
        ConfigError: tables larger than memory are not supported on this kind of device.
        NoFeasiblePlan: memory is too small even for the slots.
    """
    config = experiment.planning.beyond_memory
    if config is None:  # the plan may have been made with another config
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


def offload_folder(experiment: Experiment, plan: Plan, run: Path, *, elsewhere: bool = False) -> OffloadFolder | None:
    """Returns the folder for the rows that memory cannot hold; None if memory holds all rows.

    Args:
        experiment: the config, which may name a folder.
        plan: the plan of the run.
        run: the run folder, which is the default.
        elsewhere: whether to fall back to the system's folder for temporary files if that folder cannot be written, as
            may be the case when a run is evaluated or predicts.
    """
    config = experiment.planning.beyond_memory
    if config is None or all(placement.slots is None for placement in plan.placements.values()):
        return None
    folder = config.folder or run
    return OffloadFolder(Path(tempfile.gettempdir()) if elsewhere and not os.access(folder, os.W_OK) else folder)


def row_ranks(
    plan: Plan, layout: Layout, prepared: Path | None, folder: Path, *, keep: bool = True
) -> dict[str, FrequencyRanks]:
    """Returns, for each table whose rows ``plan`` orders, the rank of each row by falling frequency in training rows.

    Reads the ranks that are stored in the run folder, or counts them. All ranks call it together.

    Args:
        plan: the plan of the run.
        layout: the layout of its tables.
        prepared: folder of the encoded dataset, with its statistics; may be None if the plan orders no rows.
        folder: the run folder.
        keep: whether counted ranks are stored in the run folder.
    """
    rows = {spec.name: spec.rows for spec in layout.tables if plan.placements[spec.name].fast_rows is not None}
    if not rows:
        return {}
    assert prepared is not None
    path = folder / ROW_ORDER_FILE

    def store() -> None:
        if _read_ranks(path, rows) is None:
            with atomic_file(path) as temporary:
                save_file(_counted_ranks(rows, prepared), temporary)

    if keep:
        on_first_rank(store)
    return _read_ranks(path, rows) or _counted_ranks(rows, prepared)


def _counted_ranks(rows: Mapping[str, int], prepared: Path) -> dict[str, FrequencyRanks]:
    tables = DatasetStatistics.load(prepared).tables
    counted = {name: tables[name].accesses if name in tables else None for name in rows}
    return {name: frequency_ranks(accesses, rows[name]) for name, accesses in counted.items()}


def _read_ranks(path: Path, rows: Mapping[str, int]) -> dict[str, FrequencyRanks] | None:
    """Returns the ranks that :func:`row_ranks` stored; None if they are of other tables or do not exist."""
    if not path.is_file():
        return None
    stored = load_file(path)
    sizes = {name: len(ranks) for name, ranks in stored.items()}
    return {name: stored[name] for name in rows} if sizes == dict(rows) else None


def device_kind(device: torch.device) -> DeviceKind:
    """Returns the name that plans use for this kind of device."""
    return "cuda" if device.type == "cuda" else "cpu"


def _stored_plan(path: Path, layout: Layout, topology: Topology) -> Plan | None:
    """Returns the plan stored at ``path``; None if there is none for these tables and this world."""
    try:
        plan = Plan.from_json(json.loads(path.read_text(encoding="utf-8")))
        check_plan(plan, layout.tables, topology)
    except (FileNotFoundError, InvalidSection):
        return None
    return plan

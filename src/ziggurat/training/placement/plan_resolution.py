"""Resolves the plan of a run: the stored one, or a new one; with cache slots and row order where it needs them."""

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
"""Table -> rank of each of its rows by falling frequency, int32; of tables whose rows the plan orders."""


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
        experiment: whose ``planning`` section counts.
        layout: of its tables.
        world: the ranks that train.
        kind: of each rank's device.
        prepared: folder of the encoded dataset, with its statistics; None where there is none, and one device then
            holds all tables.
        folder: of the run.
        keep: whether the plan is stored there, for the run to go on with. If not, plans are not measured.
        progress: where a planner that measures shows it.

    Raises:
        ConfigError: ``planning`` asks for what cannot be.
        NoFeasiblePlan: the devices have too little memory; the message says what would be enough.
    """

    def made() -> Plan:
        plan = Plan.single_device(table.name for table in layout.tables)
        if world.size > 1 and prepared is not None:
            declared = experiment.planning.topology
            topology = resolve_topology(declared, kind, hosts=world.hosts, devices=world.local_size)
            given = planning_input(experiment, topology, layout.tables, prepared, folder, measure_plans=keep)
            stored = _stored_plan(folder / PLAN_FILE, layout, given.problem.topology)
            plan = stored or plan_problem(given.problem, given.planner(progress)).plan
        plan = slots_for(experiment, layout.tables, plan, kind, prepared)
        if keep:
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


def offload_folder(experiment: Experiment, plan: Plan, run: Path, *, elsewhere: bool = False) -> OffloadFolder | None:
    """Returns where the rows that memory cannot hold are stored; None if memory holds all rows.

    Args:
        experiment: the config, which may name a folder.
        plan: of it.
        run: folder of the run, where they are stored otherwise.
        elsewhere: whether to fall back to the system's folder for temporary files if that folder cannot be written, as
            with a run that is used and not trained.
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

    Takes those stored in the run folder, else counts new ones. All ranks call it together.

    Args:
        plan: of the run.
        layout: of its tables.
        prepared: folder of the encoded dataset, with its statistics; may be None where the plan orders no rows.
        folder: of the run.
        keep: whether new ones are stored there.
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
    """Returns what :func:`row_ranks` stored, if it is of these tables."""
    if not path.is_file():
        return None
    found = load_file(path)
    return {name: found[name] for name in rows} if {k: len(v) for k, v in found.items()} == dict(rows) else None


def device_kind(device: torch.device) -> DeviceKind:
    """Returns what a plan calls this kind of device."""
    return "cuda" if device.type == "cuda" else "cpu"


def _stored_plan(path: Path, layout: Layout, topology: Topology) -> Plan | None:
    """Returns the plan stored at ``path``, if it is for these tables and this world."""
    try:
        plan = Plan.from_json(json.loads(path.read_text(encoding="utf-8")))
        check_plan(plan, layout.tables, topology)
    except (FileNotFoundError, InvalidSection):
        return None
    return plan

"""Resolves the plan of a run, stored or new, with the cache slots and the row order that it needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ziggurat.core.errors import ConfigError, InvalidSection
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
from ziggurat.towers.placement import keeps
from ziggurat.towers.upstream import transforms
from ziggurat.training.experiment import Experiment
from ziggurat.training.placement.batch_needs import batch_needs
from ziggurat.training.placement.counted_lookups import Counts, planned_statistics, with_lookups
from ziggurat.training.placement.link_benchmark import with_measured_links
from ziggurat.training.placement.new_plan import recounted
from ziggurat.training.placement.problem import planning_input
from ziggurat.training.placement.topology import resolve_topology
from ziggurat.training.run_folder.run_files import LOOKUPS_FILE, PLAN_FILE, ROW_ORDER_FILE, RunFiles, damage_of


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

    With ``planning.new_plan`` a run that resumes may take a new plan all the same
    (:mod:`~ziggurat.training.placement.new_plan`).

    The first rank plans and sends the plan to the others, because measured bandwidths differ between measurements. For
    a planner that places rows in tiers, all ranks first measure the links that the config does not describe.

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
        RunFolderError: the stored plan is damaged, or belongs to another run.
    """
    declared = experiment.planning.topology
    if world.size > 1 and prepared is not None and experiment.planning.planner.uses_row_tiers:
        declared = with_measured_links(declared, world, kind)

    def make_plan() -> Plan:
        plan, again, counted = Plan.single_device(table.name for table in layout.tables), None, None
        if world.size > 1 and prepared is not None:
            topology = resolve_topology(declared, kind, hosts=world.hosts, devices=world.local_size)
            files, statistics = RunFiles.open(folder), Dataset(prepared).statistics()
            counted = planned_statistics(statistics, files)
            inputs = experiment, topology, layout.tables, prepared, folder
            planning = planning_input(*inputs, measure_plans=keep, statistics=counted)
            known = read_plan(files)
            stored = known if known is not None and _fits(known, layout, planning.problem.topology) else None
            if keep and known is not None:
                known_rows = read_ranks(files), counted
                again = recounted(experiment, layout, stored, *known_rows, prepared, folder, planning.problem)
            if again is not None:
                stored, counted = None, with_lookups(statistics, again.counts)
                _store_counts(files, again.counts)
                planning = planning_input(*inputs, measure_plans=keep, statistics=counted)
                if progress is not None:
                    progress.note(again.note)
            if stored is not None and transforms(experiment.parallel, world.hosts):
                stored = stored if keeps(stored, planning.problem) else None
            plan = stored or plan_problem(planning.problem, planning.planner(progress)).plan
            if again is not None:
                plan = replace(plan, notes=(again.note, *plan.notes))
        plan = with_cache_slots(experiment, layout.tables, plan, kind, prepared, counted)
        if keep:
            RunFiles.open(folder).write_json(PLAN_FILE, plan.to_json())
        return plan

    return on_first_rank(make_plan)


def with_cache_slots(
    experiment: Experiment,
    tables: Sequence[TableSpec],
    plan: Plan,
    kind: DeviceKind,
    prepared: Path | None = None,
    counted: DatasetStatistics | None = None,
) -> Plan:
    """Returns ``plan`` with cache slots for the tables that memory cannot hold, if ``planning.beyond_memory`` is set.

    Args:
        experiment: the config.
        tables: the model's embedding tables.
        plan: the plan, with or without slots.
        kind: the kind of each rank's device.
        prepared: folder of the encoded dataset, from which the lookups of batches are counted. None if there is none:
            slots then suffice for one example, and larger batches must be split.
        counted: how tables are looked up; default: as preparation has counted.

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
        dataset = Dataset(prepared)
        statistics, examples = counted or dataset.statistics(), experiment.training.batch_size
        needs = batch_needs(experiment, dataset, plan.world_size)
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

    Raises:
        RunFolderError: the stored ranks are damaged, or belong to another run.
    """
    rows = {spec.name: spec.rows for spec in layout.tables if plan.placements[spec.name].ordered}
    if not rows:
        return {}
    assert prepared is not None
    files = RunFiles.open(folder)

    def store() -> None:
        if read_ranks(files, rows) is None:
            files.write_arrays(ROW_ORDER_FILE, _counted_ranks(rows, prepared, files))

    if keep:
        on_first_rank(store)
    return read_ranks(files, rows) or _counted_ranks(rows, prepared, files)


def _store_counts(files: RunFiles, counts: Counts) -> None:
    """Stores new counts in the run folder, and deletes the order of rows by others.

    If training is killed before the new plan is stored, it resumes under the old plan with the new order: checkpoints
    hold rows by their ids, so that only sends more.
    """
    files.write_arrays(LOOKUPS_FILE, counts)
    (files.folder / ROW_ORDER_FILE).unlink(missing_ok=True)


def _counted_ranks(rows: Mapping[str, int], prepared: Path, files: RunFiles) -> dict[str, FrequencyRanks]:
    tables = planned_statistics(Dataset(prepared).statistics(), files).tables
    counted = {name: tables[name].accesses if name in tables else None for name in rows}
    return {name: frequency_ranks(accesses, rows[name]) for name, accesses in counted.items()}


def read_ranks(files: RunFiles, rows: Mapping[str, int] | None = None) -> dict[str, FrequencyRanks] | None:
    """Returns the ranks that :func:`row_ranks` stored.

    Args:
        files: the files of the run.
        rows: the number of rows of each table that they must be of; None: of any tables.

    Returns:
        For each table, int32 per row; None if they are of other tables or do not exist.

    Raises:
        RunFolderError: the file is damaged, or belongs to another run.
    """
    limit = None if rows is None else _HEADER_BYTES + 4 * sum(rows.values())
    ranks = files.read_arrays(ROW_ORDER_FILE, np.int32, limit=limit)
    if ranks is None:
        return None
    path, damage = files.folder / ROW_ORDER_FILE, damage_of(ROW_ORDER_FILE)
    for name, each in ranks.items():
        if not _is_permutation(each):
            raise damage.of(path, f"table {name!r}: is no order of its rows")
    sizes = {name: len(each) for name, each in ranks.items()}
    return ranks if rows is None or sizes == dict(rows) else None


_HEADER_BYTES = 2**24
"""Room for the header of a file of ranks."""


def _is_permutation(ranks: FrequencyRanks) -> bool:
    if len(ranks) and (ranks.min() < 0 or ranks.max() >= len(ranks)):
        return False
    seen = np.zeros(len(ranks), bool)
    seen[ranks] = True
    return bool(seen.all())


def device_kind(device: torch.device) -> DeviceKind:
    """Returns the name that plans use for this kind of device."""
    return "cuda" if device.type == "cuda" else "cpu"


def read_plan(files: RunFiles) -> Plan | None:
    """Returns the plan stored in a run folder; None if there is none.

    Raises:
        RunFolderError: it is damaged, or belongs to another run.
    """
    values = files.read_json(PLAN_FILE)
    if values is None:
        return None
    try:
        return Plan.from_json(values)
    except ConfigError as error:
        raise damage_of(PLAN_FILE).of(files.folder / PLAN_FILE, error.problem) from None


def _fits(plan: Plan, layout: Layout, topology: Topology) -> bool:
    """Whether a stored plan is for these tables and this world."""
    try:
        check_plan(plan, layout.tables, topology)
    except InvalidSection:
        return False
    return True

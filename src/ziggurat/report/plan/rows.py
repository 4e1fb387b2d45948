"""A plan in words: a line for each device and each table, the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ziggurat.planning import PlanEstimate
from ziggurat.planning.comparison import Comparison
from ziggurat.planning.plan_estimate import DeviceLoad
from ziggurat.planning.quantities import format_bytes, format_seconds
from ziggurat.report import numbers

Rows = tuple[list[str], list[list[str]], int]
"""Headers, rows of cells, and how many columns from the left are text."""


def summary(planned: PlanEstimate) -> str:
    """On what, for what."""
    topology = planned.topology
    hosts = f"{topology.hosts} hosts × " if topology.hosts > 1 else ""
    slow = f" and {format_bytes(topology.slow_memory_bytes)} of slow memory" if topology.slow_memory_bytes else ""
    plural = "s" if topology.devices > 1 or topology.hosts > 1 else ""
    return (
        f"{len(planned.tables)} tables on {hosts}{topology.devices} device{plural} ({topology.device}), "
        f"{format_bytes(topology.memory_bytes)} each{slow}, "
        f"{numbers.count(planned.batch_size)} examples a step and device"
    )


def verdict(planned: PlanEstimate) -> str:
    """How long a step is modelled to take, how even the devices are, and what crosses between them."""
    between, devices = planned.topology.hosts > 1, planned.devices
    traffic = [f"{format_bytes(sum(device.intra_bytes for device in devices))} within hosts"]
    traffic += [f"{format_bytes(sum(device.inter_bytes for device in devices))} between them"] if between else []
    slow = ""
    if planned.topology.slow_memory_bytes:
        slow = f" {percent(planned.slow_share)} of the look-ups read slow memory."
    return (
        f"By the model the slowest device needs {format_seconds(planned.step_seconds)} for its tables, "
        f"{planned.imbalance:.3g}× the mean; {' and '.join(traffic)} move a step.{slow}"
    )


def devices(planned: PlanEstimate) -> Rows:
    """Bytes and seconds of each device; of two memories, how its tables and their look-ups share them."""
    several, tiers = planned.topology.hosts > 1, planned.topology.slow_memory_bytes > 0
    headers = ["host, device" if several else "device", "tables", "weights", "optimizer", "buffers", "spare"]
    headers += ["in fast", "in slow", "slow reads"] if tiers else []
    headers += ["in host", "between"] if several else ["traffic"]
    rows: list[list[str]] = []
    for load in planned.devices:
        tables = {placed.table for placed in planned.shards if placed.shard.rank == load.rank}
        traffic = [load.intra_bytes, load.inter_bytes] if several else [load.intra_bytes]
        sizes = [load.weight_bytes, load.state_bytes, load.buffer_bytes, load.spare_bytes]
        device = f"{load.host}, {load.rank}" if several else str(load.rank)
        row = [device, str(len(tables)), *map(format_bytes, sizes)]
        if tiers:
            row += [format_bytes(load.fast_bytes), format_bytes(load.slow_bytes)]
            row.append(percent(load.slow_lookups / load.lookups if load.lookups else 0.0))
        rows.append([*row, *map(format_bytes, traffic), format_seconds(load.seconds)])
    headers.append("time")
    return headers, rows, 1


def tables(planned: PlanEstimate) -> Rows:
    """Each table: how it is split and where, the bytes of all its shards, the seconds of its slowest; of two memories,
    how many of its rows are fast and which share of its look-ups reads the others."""
    tiers = planned.topology.slow_memory_bytes > 0
    headers = ["table", "sharding", "on", "rows", "dim", "ids a row", "weights", "optimizer"]
    headers += ["fast rows", "slow reads", "time"] if tiers else ["time"]
    rows: list[list[str]] = []
    for table in planned.tables:
        placement, shards = planned.plan.placements[table.name], planned.shards_of(table.name)
        weights, states = (sum(getattr(each.cost, key) for each in shards) for key in ("weight_bytes", "state_bytes"))
        fast = table.rows if placement.fast_rows is None else placement.fast_rows
        slow, every = (sum(getattr(each.cost, key) for each in shards) for key in ("slow_lookups", "lookups"))
        rows.append(
            [
                table.name,
                placement.sharding,
                written_ranks(placement.ranks),
                numbers.count(table.rows),
                str(table.dim),
                numbers.short(planned.ids_per_row[table.name]),
                format_bytes(weights),
                format_bytes(states),
                *([numbers.count(fast), percent(slow / every if every else 0.0)] if tiers else []),
                format_seconds(max(each.cost.seconds for each in shards)),
            ]
        )
    return headers, rows, 3


def planners(comparison: Comparison) -> Rows:
    """Each planner: seconds of its slowest device, how far above an even share that is, how even the devices are, how
    many tables it splits or replicates, bytes on its fullest device, and how long it took."""
    headers = ["planner", "slowest", "over even", "max/mean", "split", "replicated", "fullest", "planned in"]
    rows: list[list[str]] = []
    for entry in comparison.entries:
        if entry.planned is None:
            rows.append([entry.name, "no room", *["–"] * 5, format_seconds(entry.planning_s)])
            continue
        placements = entry.planned.plan.placements.values()
        replicated = sum(each.sharding == "data_parallel" for each in placements)
        split = sum(len(each.ranks) > 1 for each in placements) - replicated
        over = entry.slowest / comparison.even_share - 1 if comparison.even_share else 0.0
        rows.append(
            [
                entry.name,
                format_seconds(entry.slowest),
                f"{100 * over:.1f} %",
                f"{entry.imbalance:.3f}",
                str(split),
                str(replicated),
                format_bytes(max(map(in_use, entry.planned.devices))),
                format_seconds(entry.planning_s),
            ]
        )
    return headers, rows, 1


def judged(comparison: Comparison) -> str:
    """By whose costs planners are compared, and what the bound is."""
    share = format_seconds(comparison.even_share)
    if comparison.proven:
        return f"Planners compared by {comparison.judge}; no plan's slowest device is below {share}, the lower bound."
    return (
        f"Planners compared by {comparison.judge}; an even share of all tables together would be {share}. Small sets "
        "of tables take less than their share of a large one, so that a plan may be below."
    )


def in_use(load: DeviceLoad) -> int:
    """Bytes of a device's fast memory that tables and their buffers take."""
    return load.fast_bytes + load.buffer_bytes


def percent(share: float) -> str:
    """``12.3 %``; ``0`` of nothing at all."""
    return f"{100 * share:.3g} %" if share else "0"


def written_ranks(ranks: Sequence[int], most: int = 8) -> str:
    """``0–7`` for neighbours in order, else ``3, 0, 5``; of many the first few."""
    if len(ranks) > 2 and all(right == left + 1 for left, right in pairwise(ranks)):
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(map(str, ranks[:most])) + (f", … ({len(ranks)})" if len(ranks) > most else "")

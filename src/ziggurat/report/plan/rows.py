"""A plan as text: sentences and table rows per device and per embedding table, for the terminal and the page."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ziggurat.planning import PlanEstimate
from ziggurat.planning.comparison import Comparison
from ziggurat.planning.plan_estimate import DeviceLoad
from ziggurat.planning.quantities import format_bytes, format_seconds
from ziggurat.planning.tier_cost import TIER_NAMES
from ziggurat.report import numbers

Rows = tuple[list[str], list[list[str]], int]
"""Headers, rows of cells, and the number of text columns at the left."""


def summary(planned: PlanEstimate) -> str:
    """Describes the tables, the devices and the batch in a line."""
    topology = planned.topology
    hosts = f"{topology.hosts} hosts × " if topology.hosts > 1 else ""
    slow = f" and {format_bytes(topology.slow_memory_bytes)} of slow memory" if topology.slow_memory_bytes else ""
    plural = "s" if topology.devices > 1 or topology.hosts > 1 else ""
    return (
        f"{len(planned.tables)} tables on {hosts}{topology.devices} device{plural} ({topology.device}), "
        f"{format_bytes(topology.memory_bytes)} each{slow}, "
        f"{numbers.count(planned.batch_size)} examples per step and device"
    )


def verdict(planned: PlanEstimate) -> str:
    """Describes the modelled time of a step, the imbalance of the devices and the traffic between them."""
    between, devices = planned.topology.hosts > 1, planned.devices
    traffic = [f"{format_bytes(sum(device.intra_bytes for device in devices))} within hosts"]
    traffic += [f"{format_bytes(sum(device.inter_bytes for device in devices))} between them"] if between else []
    slow = ""
    if planned.topology.slow_memory_bytes:
        slow = f" {percent(planned.slow_share)} of the look-ups read slow memory."
    return (
        f"By the cost model the slowest device needs {format_seconds(planned.step_seconds)} per step for its tables, "
        f"{planned.imbalance:.3g}× the mean; traffic per step is {' and '.join(traffic)}.{slow}"
    )


def devices(planned: PlanEstimate) -> Rows:
    """Returns a row per device with bytes and seconds; with slow memory, also the split of bytes and look-ups."""
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
    """Returns a row per table: sharding and ranks, the bytes of all shards, the seconds of the slowest shard.

    With slow memory, also the number of rows in fast memory, and the share of look-ups that read slow memory.
    """
    tiers = planned.topology.slow_memory_bytes > 0
    headers = ["table", "sharding", "on", "rows", "dim", "ids per row", "weights", "optimizer"]
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
                format_ranks(placement.ranks),
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


def tiers(planned: PlanEstimate) -> Rows:
    """Returns a row per table and tier of its rows: how many a rank needs in a step, and what the tier costs a rank.

    ``q`` is the least probability that a rank needs a row of the tier.
    """
    between = planned.topology.hosts > 1
    headers = ["table", "rows", "number", "q", "needed", "look-ups", "kept"]
    headers += ["in host", "between", "sent in"] if between else ["traffic", "sent in"]
    rows: list[list[str]] = []
    for each in planned.tiers:
        for name, load, threshold in zip(TIER_NAMES, each.tiers, (*each.thresholds, None), strict=True):
            sent = [load.intra_bytes, load.inter_bytes] if between else [load.intra_bytes]
            rows.append(
                [
                    each.table,
                    name,
                    numbers.count(load.rows),
                    "" if threshold is None else f"≥ {threshold:.2f}",
                    numbers.short(load.touched),
                    percent(load.lookups),
                    format_bytes(load.kept_bytes),
                    *map(format_bytes, sent),
                    format_seconds(load.exchange_seconds(planned.topology)),
                ]
            )
    return headers, rows, 2


def alternatives(planned: PlanEstimate) -> Rows:
    """Returns a row per table in tiers and way to place it: bytes that all ranks send, the time that takes, memory."""
    between = planned.topology.hosts > 1
    headers = ["table", "placed", *(["in hosts", "between"] if between else ["traffic"]), "sent in", "kept"]
    rows: list[list[str]] = []
    for each in planned.tiers:
        for way in each.alternatives:
            sent = [way.intra_bytes, way.inter_bytes] if between else [way.intra_bytes]
            seconds, kept = format_seconds(way.exchange_seconds), format_bytes(way.kept_bytes)
            rows.append([each.table, way.name, *map(format_bytes, sent), seconds, kept])
    return headers, rows, 2


def planners(comparison: Comparison) -> Rows:
    """Returns a row per planner.

    The columns are the seconds of the slowest device, how far they are above an even share, the imbalance (maximum over
    mean), the number of tables that are split and replicated, the bytes on the fullest device, and the planning time.
    """
    headers = ["planner", "slowest", "above bound", "max/mean", "split", "replicated", "fullest", "planned in"]
    rows: list[list[str]] = []
    for entry in comparison.entries:
        if entry.planned is None:
            rows.append([entry.name, "does not fit", *["–"] * 5, format_seconds(entry.planning_s)])
            continue
        placements = entry.planned.plan.placements.values()
        replicated = sum(each.sharding == "data_parallel" for each in placements)
        split = sum(len(each.ranks) > 1 for each in placements) - replicated
        above = entry.slowest / comparison.even_share - 1 if comparison.even_share else 0.0
        rows.append(
            [
                entry.name,
                format_seconds(entry.slowest),
                f"{100 * above:.1f} %",
                f"{entry.imbalance:.3f}",
                str(split),
                str(replicated),
                format_bytes(max(map(in_use, entry.planned.devices))),
                format_seconds(entry.planning_s),
            ]
        )
    return headers, rows, 1


def describe_comparison(comparison: Comparison) -> str:
    """Describes the costs by which planners are compared, and the lower bound or even share."""
    share = format_seconds(comparison.even_share)
    if comparison.proven:
        return f"Planners are compared by {comparison.judge}. The lower bound on the slowest device is {share}."
    return (
        f"Planners are compared by {comparison.judge}. An even share of all tables together would be {share}; it is "
        "not a strict bound, as small sets of tables take less than their share of a large one."
    )


def in_use(load: DeviceLoad) -> int:
    """Returns the bytes of a device's fast memory that tables and buffers take."""
    return load.fast_bytes + load.buffer_bytes


def percent(share: float) -> str:
    """Formats a share as ``12.3 %``, and zero as ``0``."""
    return f"{100 * share:.3g} %" if share else "0"


def format_ranks(ranks: Sequence[int], most: int = 8) -> str:
    """Formats consecutive ranks as ``0–7``, others as ``3, 0, 5``, with at most ``most`` of them."""
    if len(ranks) > 2 and all(right == left + 1 for left, right in pairwise(ranks)):
        return f"{ranks[0]}–{ranks[-1]}"
    return ", ".join(map(str, ranks[:most])) + (f", … ({len(ranks)})" if len(ranks) > most else "")

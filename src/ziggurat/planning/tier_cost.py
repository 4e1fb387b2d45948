"""What a table costs whose rows are in three tiers: copied to every rank, copied to every host, split over all ranks.

Rows are ordered by falling frequency. The first ``copied`` have a copy on every rank. The next ``host`` have one copy a
host, split over its ranks. The rest is split over all ranks. Each rank looks up each distinct row of its batch once, so
the figures of a row depend on three probabilities. Symbols, beside those of :mod:`~ziggurat.planning.cost`:

====  =================================================================================
n     look-ups of one rank and step: B·L, of the examples that were read: in-batch negatives repeat ids
p     share of the table's look-ups that the row gets
q     1 − (1 − p)^n, the probability that one given rank needs the row
h     1 − (1 − p)^(D·n), the probability that any rank of one given host needs it
u     1 − (1 − p)^(W·n), the probability that any rank needs it
v, s  bytes of the row: 4·C of weights, s of optimizer state
t     bytes that one look-up of one rank moves: 4 of position, v of the row, v of its gradient
====  =================================================================================

What one row of each tier costs, as a mean over the ranks:

======================  ==========================  ==========================  ==================
bytes                   copied to every rank        copied to every host        split over all
======================  ==========================  ==========================  ==================
sent within hosts       (q+u)·v·(D−1)/D + (D−1)/8   q·t·(D − 1)/D               q·t·(D − 1)/W
sent between hosts      x/D + (W − D)/8             x/D + (H − 1)/(8·D)         q·t·(W − D)/W
kept: weights, state    v + s                       (v + s)/D                   (v + s)/W
kept: buffers           (2·q + u + (h + u)/D)·v     (2·q + (h + u)/D)·v + 4·q   2·q·v + 8·q
kept: flags             2 + W/4 + (2·H + 1)/D       (17/8·H + 1)/D
kept: order             8                           4 + 4/D                     4 + 4/W
moved in memory         (4·q + u + 2·(h + u)/D)·v   q·(t + 2·v) + 2·(h+u)·v/D   q·t
moved by the optimizer  2·(v + s)·u                 2·(v + s)·u/D               2·(v + s)·u/W
======================  ==========================  ==========================  ==================

Gradients of copied rows are summed over the host, then between hosts, and sent back to the ranks that hold the row.
Only rows that were touched are sent. One bit a row says which: to all ranks for rows on every rank, to one rank of each
other host for rows on every host. Between hosts, x is the less of h·v·(H − 1), each host sending its sums
to all others, and (h + u)·v·(H − 1)/H, each completing a part of the sums; a table takes one of the two for all rows.
Buffers are those of the backward pass, where most are alive: a gradient where the row is needed, and again where it is
received. Flags are bits where they are sent and received, and bytes where they are used. The order of rows takes the
position of every id on every rank, and the id of each row that a rank holds (:mod:`~ziggurat.embeddings.row_order`).
The vectors of the examples themselves are the same under every plan (:func:`~ziggurat.planning.cost.client_bytes`).
Padding of exchanged sums to the longest, and the counts of ids, are left out.

Source: FlexShard (arXiv 2301.02959), which fixes the thresholds of q. The equations are ours: each row is priced by the
bandwidths of the topology. The bytes are those that ziggurat's look-up of such tables sends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from ziggurat.core.plan import Placement, Shard
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.cost import FLOAT, ID, ShardCost, state_bytes, updates_all_rows
from ziggurat.planning.usage import touch_probability

Floats = npt.NDArray[np.float64]
Parts = npt.NDArray[np.float64]
"""A figure of a row: a constant, and its parts per q, per h and per u; (4,)."""

TIER_NAMES = ("copied to every rank", "copied to every host", "split over all ranks")
POSITION = 4
"""Bytes of a row's position as it is sent, and of positions and ids in the order of rows."""


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a row of one tier costs a rank, as :data:`Parts`.

    Attributes:
        intra, inter: bytes sent within hosts and between them.
        awaited: the parts of both that are sent before the forward pass, within hosts and between them, per q.
        weights, states: bytes kept of weights and optimizer state; constants.
        buffers: bytes of buffers, flags and the order of rows.
        moved: bytes moved in memory.
    """

    intra: Parts
    inter: Parts
    awaited: tuple[float, float]
    weights: float
    states: float
    buffers: Parts
    moved: Parts


Measure = Callable[[RowCost], Parts]


@dataclass(frozen=True, slots=True)
class TierLoad:
    """The rows of one tier and what they cost a rank, on average over the ranks.

    Attributes:
        rows: rows of the tier.
        touched: expected distinct rows of it that one rank needs in a step.
        lookups: share of all look-ups that its rows get.
        intra_bytes, inter_bytes: bytes that a rank sends in a step because of it, within its host and to other hosts.
        weight_bytes, state_bytes, buffer_bytes: bytes that a rank keeps for it; the last with flags and order.
        moved_bytes: bytes read from and written to memory in a step.
    """

    rows: int
    touched: float
    lookups: float
    intra_bytes: float
    inter_bytes: float
    weight_bytes: float
    state_bytes: float
    buffer_bytes: float
    moved_bytes: float

    @property
    def kept_bytes(self) -> float:
        return self.weight_bytes + self.state_bytes + self.buffer_bytes

    def exchange_seconds(self, topology: Topology) -> float:
        """Returns the modelled seconds of sending the tier's bytes."""
        return self.intra_bytes / topology.intra_bandwidth + self.inter_bytes / topology.device_inter_bandwidth

    def seconds(self, topology: Topology) -> float:
        """Returns the modelled seconds that the tier adds to a step."""
        return self.exchange_seconds(topology) + self.moved_bytes / topology.lookup_bandwidth


def row_costs(table: TableSpec, topology: Topology) -> tuple[tuple[RowCost, RowCost, RowCost], ...]:
    """Returns what a row of each tier costs, in the order of :data:`TIER_NAMES`, for both ways to sum between hosts."""
    hosts, devices, world = topology.hosts, topology.devices, topology.world_size
    vector, state = float(FLOAT * table.dim), float(state_bytes(table.optimizer, 1, table.dim))
    asked, look_up, step = POSITION + vector, POSITION + 2 * vector, 2 * (vector + state)
    near, far = (devices - 1) / devices, (hosts - 1) / devices
    sums = vector / devices
    copied = RowCost(
        intra=_parts((devices - 1) / 8, q=near * vector, u=near * vector),
        inter=_parts((world - devices) / 8, h=far * vector),
        awaited=(0.0, 0.0),
        weights=vector,
        states=state,
        buffers=_parts(2 * POSITION + 2 + world / 4 + (2 * hosts + 1) / devices, q=2 * vector, h=sums, u=sums + vector),
        moved=_parts(q=4 * vector, h=2 * sums, u=2 * sums + vector + step),
    )
    on_hosts = RowCost(
        intra=_parts(q=near * look_up),
        inter=_parts(far / 8, h=far * vector),
        awaited=(near * asked, 0.0),
        weights=vector / devices,
        states=state / devices,
        buffers=_parts(POSITION + (POSITION + 17 / 8 * hosts + 1) / devices, q=2 * vector + POSITION, h=sums, u=sums),
        moved=_parts(q=look_up + 2 * vector, h=2 * sums, u=2 * sums + step / devices),
    )
    split = RowCost(
        intra=_parts(q=look_up * (devices - 1) / world),
        inter=_parts(q=look_up * (world - devices) / world),
        awaited=(asked * (devices - 1) / world, asked * (world - devices) / world),
        weights=vector / world,
        states=state / world,
        buffers=_parts(POSITION + POSITION / world, q=2 * (vector + POSITION)),
        moved=_parts(q=look_up, u=step / world),
    )
    completed = _parts(h=far * vector / hosts, u=far * vector / hosts)
    others = [replace(each, inter=completed + _parts(each.inter[0])) for each in (copied, on_hosts)]
    return (copied, on_hosts, split), (others[0], others[1], split)


def _parts(constant: float = 0.0, *, q: float = 0.0, h: float = 0.0, u: float = 0.0) -> Parts:
    return np.array([constant, q, h, u])


class PricedTable:
    """A table by falling frequency of its rows, with the cost of any numbers of copied rows.

    Args:
        table: the table.
        curve: how its rows are looked up, by falling frequency in one range.
        topology: the devices.
        read: examples per rank and step whose ids the distinct rows are among.
        looked_up: those whose ids are looked up, if others repeat their ids.

    Attributes:
        lookups: look-ups of one rank and step, without those of examples that repeat ids.
        every_lookup: all look-ups of one rank and step.
        ends: where the runs of equally frequent rows end, from 0 on, (N + 1,).
        needed: the probability that one given rank needs a row, for each run, (N,).
    """

    def __init__(
        self, table: TableSpec, curve: AccessCurve, topology: Topology, read: float, looked_up: float | None = None
    ) -> None:
        self.table, self.topology = table, topology
        self.lookups = read * curve.ids_per_row
        self.every_lookup = self.lookups if looked_up is None else looked_up * curve.ids_per_row
        self._ways = row_costs(table, topology)
        shares, ones = curve.shares, np.ones(len(curve.shares))
        ranks = (1, topology.devices, topology.world_size)
        self.needed, host, world = (touch_probability(shares, self.lookups * each) for each in ranks)
        if updates_all_rows(table):
            world = ones
        self._sums_4N = _cumulated(curve.sizes * np.stack([ones, self.needed, host, world]))
        self._shares = _cumulated(curve.sizes * shares)
        self.ends: Floats = self._sums_4N[0]

    @property
    def ways(self) -> int:
        """The number of ways to sum gradients between hosts."""
        return len(self._ways)

    def seconds(self, way: int) -> tuple[Floats, Floats, Floats]:
        """Returns for each tier the modelled seconds of the first rows, up to the end of each run, were they in it."""
        topology = self.topology

        def seconds(cost: RowCost) -> Parts:
            links = cost.intra / topology.intra_bandwidth + cost.inter / topology.device_inter_bandwidth
            return links + cost.moved / topology.lookup_bandwidth

        return self._of_first_rows(way, seconds)

    def awaited(self, way: int) -> tuple[Floats, Floats, Floats]:
        """Returns the same as :meth:`seconds` of the part in which the forward pass is waiting."""
        links = self.topology.intra_bandwidth, self.topology.device_inter_bandwidth
        return self._of_first_rows(way, lambda cost: _parts(q=cost.awaited[0] / links[0] + cost.awaited[1] / links[1]))

    def kept(self, way: int) -> tuple[Floats, Floats, Floats]:
        """Returns the same as :meth:`seconds` of the bytes that a rank keeps."""
        return self._of_first_rows(way, lambda cost: cost.buffers + _parts(cost.weights + cost.states))

    def loads(self, copied: int, host: int) -> tuple[TierLoad, TierLoad, TierLoad]:
        """Returns what each tier costs with these numbers of rows copied to every rank and to every host."""
        first, second = (self._loads(costs, copied, host) for costs in self._ways)
        direct, completed = (sum(load.inter_bytes for load in loads) for loads in (first, second))
        return second if completed < direct else first

    def probability(self, row: int) -> float:
        """Returns the probability that one given rank needs the row of this place in the order, from 0 on."""
        return float(self.needed[np.searchsorted(self.ends, row, side="right") - 1])

    def _of_first_rows(self, way: int, measure: Measure) -> tuple[Floats, Floats, Floats]:
        first, second, third = (measure(cost) @ self._sums_4N for cost in self._ways[way])
        return first, second, third

    def _loads(
        self, costs: tuple[RowCost, RowCost, RowCost], copied: int, host: int
    ) -> tuple[TierLoad, TierLoad, TierLoad]:
        ends = 0, copied, copied + host, self.table.rows
        first, second, third = (self._load(cost, ends[k], ends[k + 1]) for k, cost in enumerate(costs))
        return first, second, third

    def _load(self, cost: RowCost, first: int, end: int) -> TierLoad:
        sums_4 = np.array([self._between(sums, first, end) for sums in self._sums_4N])
        return TierLoad(
            rows=end - first,
            touched=float(sums_4[1]),
            lookups=self._between(self._shares, first, end),
            intra_bytes=float(cost.intra @ sums_4),
            inter_bytes=float(cost.inter @ sums_4),
            weight_bytes=cost.weights * (end - first),
            state_bytes=cost.states * (end - first),
            buffer_bytes=float(cost.buffers @ sums_4),
            moved_bytes=float(cost.moved @ sums_4),
        )

    def _between(self, sums: Floats, first: int, end: int) -> float:
        low, high = np.interp([first, end], self.ends, sums)
        return float(high - low)


def _cumulated(values: Floats) -> Floats:
    """Returns the sums of the first values along the last axis, from those of none on."""
    return np.concatenate([np.zeros((*values.shape[:-1], 1)), np.cumsum(values, axis=-1)], axis=-1)


def tier_of(shard: Shard, sizes: Sequence[int]) -> int:
    """Returns the number of a shard's tier, given how many rows each tier has; an empty shard may begin at the end, and
    is of the last tier with rows."""
    last = next((number for number in (2, 1, 0) if sizes[number]), 0)
    return next((number for number, end in enumerate(accumulate(sizes)) if shard.rows.first < end), last)


def tier_shard_costs(
    tiered: PricedTable, placement: Placement, shards: Sequence[Shard]
) -> list[tuple[Shard, ShardCost]]:
    """Returns each shard of a table in tiers with its cost.

    Look-ups of a tier are even over its shards, because its rows are dealt out one by one.
    """
    table = tiered.table
    tiers = placement.tiers(table.rows)
    loads = tiered.loads(tiers[0].size, tiers[1].size)
    found: list[tuple[Shard, ShardCost]] = []
    for shard in shards:
        load, rows = loads[tier_of(shard, [tier.size for tier in tiers])], shard.rows.size
        cost = ShardCost(
            weight_bytes=FLOAT * rows * table.dim,
            state_bytes=state_bytes(table.optimizer, rows, table.dim),
            buffer_bytes=round(load.buffer_bytes),
            memory_traffic=load.moved_bytes,
            gradient_traffic=0.0,
            intra_bytes=load.intra_bytes,
            inter_bytes=load.inter_bytes,
            seconds=load.seconds(tiered.topology),
            lookups=load.touched,
            slow_bytes=0,
            slow_traffic=0.0,
            slow_lookups=0.0,
        )
        found.append((shard, cost))
    return found


def baseline_bytes(tiered: PricedTable) -> tuple[float, float, float]:
    """Returns the bytes that a rank sends within its host, sends to other hosts, and keeps, if each look-up is sent.

    The table is split by rows over all ranks. The rank keeps the ids, the rows and the gradients of what is asked of
    it, beside its own examples.
    """
    table, topology, look_ups = tiered.table, tiered.topology, tiered.every_lookup
    world, devices, vector = topology.world_size, topology.devices, FLOAT * table.dim
    sent = look_ups * (ID + 2 * vector)
    rows = table.rows / world * (vector + state_bytes(table.optimizer, 1, table.dim))
    return sent * (devices - 1) / world, sent * (world - devices) / world, rows + sent

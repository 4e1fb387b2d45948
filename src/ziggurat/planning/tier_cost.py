"""What a table costs whose rows are in three tiers: copied to every rank, copied to every host, split over all ranks.

Rows are ordered by falling frequency. The first ``copied`` have a copy on every rank. The next ``host`` have one copy a
host, split over its ranks. The rest is split over all ranks. Each rank looks up each distinct row of its batch once, so
the figures of a row depend on two probabilities. Symbols, beside those of :mod:`~ziggurat.planning.cost`:

====  =================================================================================
n     look-ups of one rank and step: B·L
p     share of the table's look-ups that the row gets
q     1 − (1 − p)^n, the probability that one given rank needs the row
u     1 − (1 − p)^(W·n), the probability that any rank needs it
v, s  bytes of the row: 4·C of weights, s of optimizer state
e     bytes of the row's gradient when copies are kept equal: 4·(C + 1), with a flag that says whether it was touched
t     bytes that one look-up of one rank moves: 8 of id, v of the row, v of its gradient
====  =================================================================================

What one row of each tier costs, as a mean over the ranks:

==============================  ======================  ======================  ==========================
bytes                           copied to every rank    copied to every host    split over all ranks
==============================  ======================  ======================  ==========================
sent within hosts               2·(D − 1)/D·e           q·t·(D − 1)/D           q·t·(D − 1)/W
sent between hosts              2·(H − 1)/(H·D)·e       2·(H − 1)/(H·D)·e       q·t·(W − D)/W
kept: weights and state         v + s                   (v + s)/D               (v + s)/W
kept: gradients of copies       e                       e/D                     0
kept: buffers of the look-up    2·v·q                   (16 + 4·v)·q            (16 + 4·v)·q
moved in memory                 5·v + 2·v·q             5·v/D + t·q             t·q
moved by the optimizer          2·(v + s)·u             2·(v + s)·u/D           2·(v + s)·u/W
==============================  ======================  ======================  ==========================

Copies are kept equal by a hierarchical all-reduce: a reduce-scatter within the host, an all-reduce of equal parts
between hosts, an all-gather within the host. Rows with one copy a host need only the middle step. The buffers of a
look-up are the row and its gradient where it is needed, and, where another rank holds it, its id on both sides and both
again at the holder. A row that every rank needs is therefore no larger as a copy than as a received row, which is why
copies can take no extra memory.

Source: FlexShard (arXiv 2301.02959), sections 3 and 4. The equations are ours: the paper fixes the thresholds, we price
each row by the bandwidths of the topology.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ziggurat.core.plan import Placement, Shard
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.cost import FLOAT, ID, ShardCost, state_bytes, updates_all_rows
from ziggurat.planning.usage import touch_probability

Floats = npt.NDArray[np.float64]

TIERS = ("copied to every rank", "copied to every host", "split over all ranks")


@dataclass(frozen=True, slots=True)
class RowCost:
    """What a row of one tier costs a rank: a constant, a part per unit of q, and a part per unit of u.

    Attributes:
        intra, inter: bytes sent within hosts and between them, (constant, per q).
        weights, states: bytes kept of weights and optimizer state.
        buffers: bytes of buffers and exchanged gradients, (constant, per q).
        moved: bytes moved in memory, (constant, per q, per u).
    """

    intra: tuple[float, float]
    inter: tuple[float, float]
    weights: float
    states: float
    buffers: tuple[float, float]
    moved: tuple[float, float, float]


RowParts = Callable[[RowCost], tuple[float, float, float]]
"""Returns a figure of a row: its constant, its part per q, its part per u."""


@dataclass(frozen=True, slots=True)
class TierLoad:
    """The rows of one tier and what they cost a rank, on average over the ranks.

    Attributes:
        rows: rows of the tier.
        touched: expected distinct rows of it that one rank needs in a step.
        lookups: share of all look-ups that its rows get.
        intra_bytes, inter_bytes: bytes that a rank sends in a step because of it, within its host and to other hosts.
        weight_bytes, state_bytes, buffer_bytes: bytes that a rank keeps for it.
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


def row_costs(table: TableSpec, topology: Topology) -> tuple[RowCost, RowCost, RowCost]:
    """Returns what a row of each tier costs, in the order of :data:`TIERS`."""
    hosts, devices, world = topology.hosts, topology.devices, topology.world_size
    vector, state = FLOAT * table.dim, state_bytes(table.optimizer, 1, table.dim)
    flagged, look_up = vector + FLOAT, ID + 2 * vector
    replicas = 2 * (hosts - 1) / (hosts * devices) * flagged
    copies = world > 1
    received, step = 2 * ID + 4 * vector, 2.0 * (vector + state)
    copied = RowCost(
        intra=(2 * (devices - 1) / devices * flagged, 0.0),
        inter=(replicas, 0.0),
        weights=vector,
        states=state,
        buffers=(flagged * copies, 2.0 * vector),
        moved=(5.0 * vector * copies, 2.0 * vector, step),
    )
    on_hosts = RowCost(
        intra=(0.0, look_up * (devices - 1) / devices),
        inter=(replicas, 0.0),
        weights=vector / devices,
        states=state / devices,
        buffers=(flagged / devices * (hosts > 1), received),
        moved=(5.0 * vector / devices * (hosts > 1), look_up, step / devices),
    )
    split = RowCost(
        intra=(0.0, look_up * (devices - 1) / world),
        inter=(0.0, look_up * (world - devices) / world),
        weights=vector / world,
        states=state / world,
        buffers=(0.0, received),
        moved=(0.0, look_up, step / world),
    )
    return copied, on_hosts, split


def tier_shard_costs(
    tiered: TieredTable, placement: Placement, shards: Sequence[Shard]
) -> list[tuple[Shard, ShardCost]]:
    """Returns each shard of a table in tiers with its cost.

    Look-ups of a tier are even over its shards, because its rows are dealt out one by one.
    """
    table = tiered.table
    tiers = placement.tiers(table.rows)
    loads = tiered.loads(tiers[0].size, tiers[1].size)
    found: list[tuple[Shard, ShardCost]] = []
    for shard in shards:
        number = next(k for k, tier in enumerate(tiers) if tier.first <= shard.rows.first < tier.first + tier.size)
        load, rows = loads[number], shard.rows.size
        whole = tiered.costs[number].moved[0] * load.rows
        cost = ShardCost(
            weight_bytes=FLOAT * rows * table.dim,
            state_bytes=state_bytes(table.optimizer, rows, table.dim),
            buffer_bytes=round(load.buffer_bytes),
            memory_traffic=load.moved_bytes,
            gradient_traffic=whole,
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


class TieredTable:
    """A table by falling frequency of its rows, with the cost of any numbers of copied rows.

    Args:
        table: the table.
        curve: how its rows are looked up, by falling frequency in one range.
        topology: the devices.
        batch_size: examples per rank and step.
    """

    def __init__(self, table: TableSpec, curve: AccessCurve, topology: Topology, batch_size: int) -> None:
        self.table, self.topology, self.curve = table, topology, curve
        self.lookups = batch_size * curve.ids_per_row
        self.costs = row_costs(table, topology)
        needed = touch_probability(curve.shares, self.lookups)
        anywhere = touch_probability(curve.shares, self.lookups * topology.world_size)
        if updates_all_rows(table):
            anywhere = np.ones_like(anywhere)
        self.needed = needed
        """Probability that one given rank needs a row, for each run of rows of equal frequency."""
        self.ends: Floats = np.concatenate([[0.0], np.cumsum(curve.sizes)])
        self._sums = [
            np.concatenate([[0.0], np.cumsum(curve.sizes * each)]) for each in (needed, anywhere, curve.shares)
        ]

    def seconds(self) -> tuple[Floats, Floats, Floats]:
        """Returns for each tier the modelled seconds of the first rows, up to the end of each run, were they in it."""
        topology = self.topology
        links = topology.intra_bandwidth, topology.device_inter_bandwidth, topology.lookup_bandwidth
        return self._cumulated(
            lambda cost: (
                cost.intra[0] / links[0] + cost.inter[0] / links[1] + cost.moved[0] / links[2],
                cost.intra[1] / links[0] + cost.inter[1] / links[1] + cost.moved[1] / links[2],
                cost.moved[2] / links[2],
            )
        )

    def kept(self) -> tuple[Floats, Floats, Floats]:
        """Returns the same as :meth:`seconds` of the bytes that a rank keeps."""
        return self._cumulated(lambda cost: (cost.weights + cost.states + cost.buffers[0], cost.buffers[1], 0.0))

    def loads(self, copied: int, host: int) -> tuple[TierLoad, TierLoad, TierLoad]:
        """Returns what each tier costs with these numbers of rows copied to every rank and to every host."""
        bounds = 0, copied, copied + host, self.table.rows
        return (
            self._load(self.costs[0], bounds[0], bounds[1]),
            self._load(self.costs[1], bounds[1], bounds[2]),
            self._load(self.costs[2], bounds[2], bounds[3]),
        )

    def probability(self, row: int) -> float:
        """Returns the probability that one given rank needs the row of this place in the order, from 0 on."""
        return float(self.needed[np.searchsorted(self.ends, row, side="right") - 1])

    def _cumulated(self, parts: RowParts) -> tuple[Floats, Floats, Floats]:
        first, second, third = (self._cumulated_of(*parts(cost)) for cost in self.costs)
        return first, second, third

    def _cumulated_of(self, constant: float, needed: float, anywhere: float) -> Floats:
        return constant * self.ends + needed * self._sums[0] + anywhere * self._sums[1]

    def _load(self, cost: RowCost, first: int, end: int) -> TierLoad:
        rows = end - first
        needed, anywhere, share = (self._between(sums, first, end) for sums in self._sums)
        return TierLoad(
            rows=rows,
            touched=needed,
            lookups=share,
            intra_bytes=cost.intra[0] * rows + cost.intra[1] * needed,
            inter_bytes=cost.inter[0] * rows + cost.inter[1] * needed,
            weight_bytes=cost.weights * rows,
            state_bytes=cost.states * rows,
            buffer_bytes=cost.buffers[0] * rows + cost.buffers[1] * needed,
            moved_bytes=cost.moved[0] * rows + cost.moved[1] * needed + cost.moved[2] * anywhere,
        )

    def _between(self, sums: Floats, first: int, end: int) -> float:
        low, high = np.interp([first, end], self.ends, sums)
        return float(high - low)

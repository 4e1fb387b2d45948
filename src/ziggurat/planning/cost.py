"""What a shard costs the device that holds it: bytes it keeps, bytes it moves in a step, and the seconds that follow.

The model of a step, all tables float32, ids int64, lengths int32 (a length for each key and example):

====  =================================================================================
H, D  hosts and devices of each; W = H·D ranks
B     examples per rank and step; W·B in all
K     keys that the table is looked up by: its features, each position of a sequence one
L     ids per example over all keys
f     share of the ids that fall into the shard's rows; 1 where it has all rows
R, C  rows and columns of the shard
s     bytes of optimizer state per row of the shard
n     ids that reach the shard: W·B·L·f; of a replicated table B·L on every rank
U     different rows among them, as expected from how often each row is used; of a
      replicated table among the ids of all ranks
====  =================================================================================

**Memory traffic**, forward, backward and the optimizer fused into it: ``n·(8 + 8·C) + U·(8·C + 2·s)``, that is, each id
read, its row read (4·C), its gradient read (4·C); each touched row read and written with its state. A replicated table
besides fills, reduces (read and write) and divides (read and write) the gradient of the whole table: ``20·R·C``. Adam
with ``rows: all`` touches every row.

**Two tiers.** Of a shard whose rows lie by falling frequency, the first are in fast memory and the others in slow.
Slow memory then moves ``n'·4·C + U'·(8·C + 2·s)``, n' and U' counting the ids and different rows that are slow: each
such row read, and read and written again by the optimizer. Ids and gradients lie in fast memory, which moves the rest
of the sum above; so where no row is slow, all is as with one memory.

**Traffic between devices** is counted at the device that holds the shard, where each byte that leaves or reaches it
because of the shard is counted once; the sum over all shards is what all ranks send. With i = 8·L·f + 4·K bytes of ids
and v = 4·K·C bytes of vectors an example:

===========================  ============================================  ===========================================
sharding                     within the host                               to and from other hosts
===========================  ============================================  ===========================================
table-, row-, column-wise    (D − 1)·B·(i + 2·v)                           (H − 1)·D·B·(i + 2·v)
table-row-wise, grid         (D − 1)·B·i + (D − 1)·H·B·2·v                 (H − 1)·D·B·i + (H − 1)·B·2·v
data-parallel                all-reduce in a ring: 2·(W − 1)/W·4·R·(C + 1) bytes leave each rank, over the way to the
                             next rank: to another host where the rank is its host's last
===========================  ============================================  ===========================================

All-to-all for ids, all-to-all of vectors out and of gradients back. Row-wise it is a reduce-scatter and an all-gather
of the same size: every rank of the ring holds partial sums for all examples. Table-row-wise and grid reduce within the
host first, so that only one vector an example crosses. Replicated tables exchange a flag for each row beside the
gradient. (gloo makes a reduce-scatter of an all-reduce, which moves twice as much.)

**Seconds** = fast traffic / lookup bandwidth + slow traffic / slow bandwidth + traffic within the host / its bandwidth
+ traffic with others / the device's share of the host's. A ring is as fast as its slowest way, on every rank; between
hosts it is alone on that way and has all of it. What a rank sends and gets as the owner of examples, not of shards, is
the same on every rank under any plan and left out.

Sources: Mudigere et al. (Neo), arXiv 2104.05158, section 4; TorchRec's collectives for each sharding type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ziggurat.core.plan import Shard, Sharding, Span
from ziggurat.core.tables import TableSpec
from ziggurat.core.topology import Topology
from ziggurat.planning.access_curve import AccessCurve
from ziggurat.planning.usage import Usage

FLOAT, ID, LENGTH = 4, 8, 4
"""Bytes of a number, an id and a length."""


@dataclass(frozen=True, slots=True)
class ShardCost:
    """What a shard costs its device.

    Attributes:
        weight_bytes, state_bytes: kept, in either memory.
        buffer_bytes: ids, vectors and gradients that lie there during a step, at most.
        memory_traffic: bytes read from and written to the device's fast memory a step.
        gradient_traffic: of these, what a replicated table's gradient as a whole takes.
        intra_bytes, inter_bytes: to and from other devices of the host, and of other hosts, a step.
        seconds: that a step takes for it.
        lookups: ids that reach it in a step.
        slow_bytes: of weights and states, those in slow memory.
        slow_traffic: bytes read from and written to slow memory a step.
        slow_lookups: of the ids, those of rows in slow memory.
    """

    weight_bytes: int
    state_bytes: int
    buffer_bytes: int
    memory_traffic: float
    gradient_traffic: float
    intra_bytes: float
    inter_bytes: float
    seconds: float
    lookups: float
    slow_bytes: int
    slow_traffic: float
    slow_lookups: float

    @property
    def kept_bytes(self) -> int:
        """All that the shard needs of the device's fast memory."""
        return self.weight_bytes + self.state_bytes + self.buffer_bytes - self.slow_bytes


def state_bytes(optimizer: Mapping[str, Any], rows: int, columns: int) -> int:
    """Bytes of optimizer state: none for sgd, a float a row for rowwise_adagrad, one a weight for adagrad, two for
    adam."""
    match optimizer["name"]:
        case "sgd":
            return 0
        case "rowwise_adagrad":
            return FLOAT * rows
        case "adagrad":
            return FLOAT * rows * columns
        case "adam":
            return 2 * FLOAT * rows * columns
        case other:
            raise AssertionError(other)


def client_bytes(table: TableSpec, usage: Usage, batch_size: int) -> int:
    """Bytes on every rank, wherever the shards are: the ids of its examples, their vectors and the gradients."""
    keys = len(table.keys)
    ids = ID * usage.ids_per_row + LENGTH * keys
    return round(batch_size * (ids + 2 * FLOAT * keys * table.dim))


def shard_cost(
    table: TableSpec, shard: Shard, sharding: Sharding, usage: Usage | AccessCurve, topology: Topology, batch_size: int
) -> ShardCost:
    """The cost of one shard of ``table``, by the model above; ``usage`` is of the table's rows as they lie."""
    rows, columns = shard.rows.size, shard.columns.size
    weights, states = FLOAT * rows * columns, state_bytes(table.optimizer, rows, columns)
    replicated = sharding == "data_parallel"
    buffers = _replica_buffers(table, topology) if replicated else _buffers(table, shard, sharding, usage, topology)
    per_batch = 1 if replicated else batch_size
    if replicated:
        intra, inter = _ring_traffic(shard, topology)
        ways = [topology.intra_bandwidth] * (topology.devices > 1) + [topology.inter_bandwidth] * (topology.hosts > 1)
        exchange = (intra + inter) / min(ways, default=1.0)
    else:
        intra, inter = _traffic(table, shard, sharding, usage, topology)
        intra, inter = batch_size * intra, batch_size * inter
        exchange = intra / topology.intra_bandwidth + inter / topology.device_inter_bandwidth
    all_ids = topology.world_size * batch_size * usage.ids_per_row
    ids, own_ids = (all_ids / topology.world_size if replicated else all_ids), usage.share(shard.rows)
    reads = FLOAT * columns
    moved = _row_traffic(table, shard.rows, columns, usage, all_ids, ids)
    gradients = 5 * FLOAT * rows * columns if replicated and topology.world_size > 1 else 0
    slow = _row_traffic(table, shard.slow, columns, usage, all_ids, ids) if shard.slow.size else 0.0
    fast = ids * own_ids * (ID + reads) + moved - slow + gradients
    seconds = fast / topology.lookup_bandwidth + exchange + (slow / topology.slow_bandwidth if slow else 0.0)
    return ShardCost(
        weight_bytes=weights,
        state_bytes=states,
        buffer_bytes=round(per_batch * buffers),
        memory_traffic=fast,
        gradient_traffic=gradients,
        intra_bytes=intra,
        inter_bytes=inter,
        seconds=seconds,
        lookups=ids * own_ids,
        slow_bytes=FLOAT * shard.slow.size * columns + state_bytes(table.optimizer, shard.slow.size, columns),
        slow_traffic=slow,
        slow_lookups=ids * usage.share(shard.slow) if shard.slow.size else 0.0,
    )


def _row_traffic(
    table: TableSpec, rows: Span, columns: int, usage: Usage | AccessCurve, all_ids: float, ids: float
) -> float:
    """Bytes of these rows that a step moves: each read for each of its ids, and read and written with its state."""
    touched = rows.size if updates_all_rows(table) else usage.distinct(all_ids, rows)
    return ids * usage.share(rows) * FLOAT * columns + touched * 2 * row_bytes(table, columns)


def row_bytes(table: TableSpec, columns: int) -> int:
    """Bytes of a row of so many columns, with its state."""
    return FLOAT * columns + state_bytes(table.optimizer, 1, columns)


def _traffic(
    table: TableSpec, shard: Shard, sharding: Sharding, usage: Usage | AccessCurve, topology: Topology
) -> tuple[float, float]:
    """(within the host, with other hosts) for one example of each rank."""
    ids, vectors = _example_bytes(table, shard, usage)
    hosts, devices = topology.hosts, topology.devices
    if sharding in ("table_row_wise", "grid"):
        return (devices - 1) * (ids + hosts * 2 * vectors), (hosts - 1) * (devices * ids + 2 * vectors)
    return (devices - 1) * (ids + 2 * vectors), (hosts - 1) * devices * (ids + 2 * vectors)


def _ring_traffic(shard: Shard, topology: Topology) -> tuple[float, float]:
    """(within the host, to the next host) of the whole table's gradient and flags."""
    world, size = topology.world_size, shard.rows.size * FLOAT * (shard.columns.size + 1)
    sent = 2 * (world - 1) / world * size
    crosses = topology.host(shard.rank) != topology.host((shard.rank + 1) % world)
    return (0.0, sent) if crosses else (sent, 0.0)


def _buffers(
    table: TableSpec, shard: Shard, sharding: Sharding, usage: Usage | AccessCurve, topology: Topology
) -> float:
    """For one example of each rank: its ids, and its vectors with their gradients; the partial sums of the host too."""
    ids, vectors = _example_bytes(table, shard, usage)
    again = topology.hosts if sharding in ("table_row_wise", "grid") else 0
    return topology.world_size * ids + (topology.world_size + again) * 2 * vectors


def _replica_buffers(table: TableSpec, topology: Topology) -> float:
    """The gradient of the whole table, and a flag for each row, where it is exchanged or moves every row."""
    if topology.world_size == 1:
        return table.weight_bytes if updates_all_rows(table) else 0
    return table.weight_bytes + FLOAT * table.rows


def _example_bytes(table: TableSpec, shard: Shard, usage: Usage | AccessCurve) -> tuple[float, int]:
    """(ids, vectors) of one example for this shard."""
    keys = len(table.keys)
    return ID * usage.ids_per_row * usage.share(shard.rows) + LENGTH * keys, FLOAT * keys * shard.columns.size


def updates_all_rows(table: TableSpec) -> bool:
    """Whether each step moves every row, looked up or not."""
    return table.optimizer["name"] == "adam" and table.optimizer.get("rows") == "all"

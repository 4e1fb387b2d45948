"""The cost model: what a shard costs its device in bytes stored, bytes moved each step, and seconds each step.

Tables are float32, ids int64, lengths int32 (a length for each key and example). Symbols:

====  =================================================================================
H, D  hosts and devices of each; W = H·D ranks
B     examples per rank and step; W·B in all. Where negatives are dropped during training, those that are left,
      but for buffers
K     keys that the table is looked up by: its features; each position of a sequence counts as one
L     ids per example over all keys
f     share of the ids that fall into the shard's rows; 1 if the shard has all rows
R, C  rows and columns of the shard
s     bytes of optimizer state per row of the shard
n     ids that reach the shard: W·B·L·f; for a replicated table B·L on every rank
U     expected number of distinct rows among them, from how often each row is looked up;
      for a replicated table among the ids of all ranks. In-batch negatives repeat ids and are not counted here
====  =================================================================================

**Memory traffic** of forward, backward and the fused optimizer is ``n·(8 + 8·C) + U·(8·C + 2·s)``. For each id, the id,
its row (4·C) and its gradient (4·C) are read. Each touched row is read and written, with its state. A replicated table
additionally fills, reduces (read and write) and divides (read and write) the gradient of the whole table: ``20·R·C``.
Adam with ``rows: all`` touches every row.

**Two tiers.** If a shard's rows are ordered by falling frequency, the first are in fast memory and the others in slow.
Slow memory then moves ``n'·4·C + U'·(8·C + 2·s)``, where n' and U' count the ids and the distinct rows that are slow:
each such row is read for the look-up, and read and written again by the optimizer. Ids and gradients are in fast
memory, which moves the rest of the sum above. Without slow rows the cost is therefore that of a single memory.

**Traffic between devices** is counted at the device that holds the shard: each byte that leaves or reaches it because
of the shard counts once, so the sum over all shards is what all ranks send. With i = 8·L·f + 4·K bytes of ids and
v = 4·K·C bytes of vectors an example:

===========================  ============================================  ===========================================
sharding                     within the host                               to and from other hosts
===========================  ============================================  ===========================================
table-, row-, column-wise    (D − 1)·B·(i + 2·v)                           (H − 1)·D·B·(i + 2·v)
table-row-wise, grid         (D − 1)·B·i + (D − 1)·H·B·2·v                 (H − 1)·D·B·i + (H − 1)·B·2·v
data-parallel                all-reduce in a ring: 2·(W − 1)/W·4·R·(C + 1) bytes leave each rank over the link to the
                             next rank, which crosses hosts if the rank is its host's last
===========================  ============================================  ===========================================

Ids take an all-to-all; vectors take one out, and their gradients one back. Row-wise, these are a reduce-scatter and an
all-gather of the same size, because every rank holds partial sums for all examples. Table-row-wise and grid reduce
within the host first, so that only one vector an example crosses hosts. Replicated tables exchange a flag for each row
in addition to the gradient. (gloo implements reduce-scatter by an all-reduce, which moves twice as much.)

**Seconds** = fast traffic / lookup bandwidth + slow traffic / slow bandwidth + traffic within the host / its bandwidth
+ traffic with other hosts / the device's share of the host's bandwidth. A ring is as fast as its slowest link, on every
rank; between hosts it has the whole link to itself. What a rank sends and receives as the owner of examples, rather
than of shards, is the same on every rank under any plan and is left out.

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
"""Bytes of a float32 number, an id and a length."""


@dataclass(frozen=True, slots=True)
class ShardCost:
    """What a shard costs its device.

    Attributes:
        weight_bytes, state_bytes: bytes of weights and optimizer states, in fast and slow memory together.
        buffer_bytes: peak bytes of ids, vectors and gradients during a step.
        memory_traffic: bytes read from and written to the device's fast memory each step.
        gradient_traffic: the part of memory_traffic that handles a replicated table's whole gradient.
        intra_bytes, inter_bytes: bytes exchanged each step with devices of the same host, and of other hosts.
        seconds: modelled seconds that the shard adds to a step.
        lookups: ids that reach the shard each step.
        slow_bytes: bytes of weights and states in slow memory.
        slow_traffic: bytes read from and written to slow memory each step.
        slow_lookups: ids of rows in slow memory each step.
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
        """Bytes that the shard needs in the device's fast memory: weights, states and buffers, without slow rows."""
        return self.weight_bytes + self.state_bytes + self.buffer_bytes - self.slow_bytes


def state_bytes(optimizer: Mapping[str, Any], rows: int, columns: int) -> int:
    """Returns the bytes of optimizer state: none for sgd, one float a row for rowwise_adagrad, one a weight for
    adagrad, two a weight for adam."""
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
    """Returns the bytes that every rank needs under any plan: the ids of its examples, their vectors and gradients."""
    keys = len(table.keys)
    ids = ID * usage.ids_per_row + LENGTH * keys
    return round(batch_size * (ids + 2 * FLOAT * keys * table.dim))


def shard_cost(
    table: TableSpec,
    shard: Shard,
    sharding: Sharding,
    usage: Usage | AccessCurve,
    topology: Topology,
    batch_size: int,
    looked_up: float | None = None,
    read: float | None = None,
) -> ShardCost:
    """Returns the cost of one shard of ``table`` by the model above.

    Args:
        table, shard, sharding: the table, and its part with the way in which it is split.
        usage: how the table's rows are looked up, in the order in which they are stored.
        topology: the devices.
        batch_size: B, for which buffers have room.
        looked_up: examples of a rank and step whose ids are looked up, if they are fewer.
        read: those of them that were read, if the others repeat their ids.
    """
    rows, columns = shard.rows.size, shard.columns.size
    weights, states = FLOAT * rows * columns, state_bytes(table.optimizer, rows, columns)
    replicated = sharding == "data_parallel"
    buffers = _replica_buffers(table, topology) if replicated else _buffers(table, shard, sharding, usage, topology)
    per_batch = 1 if replicated else batch_size
    looked_up = batch_size if looked_up is None else looked_up
    if replicated:
        intra, inter = _ring_traffic(shard, topology)
        links = [topology.intra_bandwidth] * (topology.devices > 1) + [topology.inter_bandwidth] * (topology.hosts > 1)
        exchange = (intra + inter) / min(links, default=1.0)
    else:
        intra, inter = _traffic(table, shard, sharding, usage, topology)
        intra, inter = looked_up * intra, looked_up * inter
        exchange = intra / topology.intra_bandwidth + inter / topology.device_inter_bandwidth
    all_ids = topology.world_size * looked_up * usage.ids_per_row
    among = all_ids if read is None else topology.world_size * read * usage.ids_per_row
    ids, own_ids = (all_ids / topology.world_size if replicated else all_ids), usage.share(shard.rows)
    reads = FLOAT * columns
    row_traffic = _row_traffic(table, shard.rows, columns, usage, among, ids)
    gradients = 5 * FLOAT * rows * columns if replicated and topology.world_size > 1 else 0
    slow = _row_traffic(table, shard.slow, columns, usage, among, ids) if shard.slow.size else 0.0
    fast = ids * own_ids * (ID + reads) + row_traffic - slow + gradients
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
    table: TableSpec, rows: Span, columns: int, usage: Usage | AccessCurve, among: float, ids: float
) -> float:
    """Returns the bytes of these rows that a step moves.

    Each row is read once for each of its ids; each touched row is also read and written with its state. These are the
    distinct rows of ``among`` ids.
    """
    touched = rows.size if updates_all_rows(table) else usage.distinct(among, rows)
    return ids * usage.share(rows) * FLOAT * columns + touched * 2 * row_bytes(table, columns)


def row_bytes(table: TableSpec, columns: int) -> int:
    """Returns the bytes of a row with this many columns, including its optimizer state."""
    return FLOAT * columns + state_bytes(table.optimizer, 1, columns)


def _traffic(
    table: TableSpec, shard: Shard, sharding: Sharding, usage: Usage | AccessCurve, topology: Topology
) -> tuple[float, float]:
    """Returns the bytes exchanged (within the host, with other hosts) for one example of each rank."""
    ids, vectors = _example_bytes(table, shard, usage)
    hosts, devices = topology.hosts, topology.devices
    if sharding in ("table_row_wise", "grid"):
        return (devices - 1) * (ids + hosts * 2 * vectors), (hosts - 1) * (devices * ids + 2 * vectors)
    return (devices - 1) * (ids + 2 * vectors), (hosts - 1) * devices * (ids + 2 * vectors)


def _ring_traffic(shard: Shard, topology: Topology) -> tuple[float, float]:
    """Returns the bytes sent (within the host, to the next host) for the whole table's gradient and row flags."""
    world, size = topology.world_size, shard.rows.size * FLOAT * (shard.columns.size + 1)
    sent = 2 * (world - 1) / world * size
    crosses = topology.host(shard.rank) != topology.host((shard.rank + 1) % world)
    return (0.0, sent) if crosses else (sent, 0.0)


def _buffers(
    table: TableSpec, shard: Shard, sharding: Sharding, usage: Usage | AccessCurve, topology: Topology
) -> float:
    """Returns the buffer bytes for one example of each rank: its ids, its vectors and their gradients.

    Shardings that reduce within the host first also buffer the host's partial sums.
    """
    ids, vectors = _example_bytes(table, shard, usage)
    partial_sums = topology.hosts if sharding in ("table_row_wise", "grid") else 0
    return topology.world_size * ids + (topology.world_size + partial_sums) * 2 * vectors


def _replica_buffers(table: TableSpec, topology: Topology) -> float:
    """Returns the buffer bytes of a replicated table.

    Several ranks exchange the whole table's gradient and a flag for each row. A single rank needs the whole gradient
    only if the optimizer updates every row.
    """
    if topology.world_size == 1:
        return table.weight_bytes if updates_all_rows(table) else 0
    return table.weight_bytes + FLOAT * table.rows


def _example_bytes(table: TableSpec, shard: Shard, usage: Usage | AccessCurve) -> tuple[float, int]:
    """Returns the bytes of (ids, vectors) of one example for this shard."""
    keys = len(table.keys)
    return ID * usage.ids_per_row * usage.share(shard.rows) + LENGTH * keys, FLOAT * keys * shard.columns.size


def updates_all_rows(table: TableSpec) -> bool:
    """Returns whether each step updates every row, looked up or not."""
    return table.optimizer["name"] == "adam" and table.optimizer.get("rows") == "all"

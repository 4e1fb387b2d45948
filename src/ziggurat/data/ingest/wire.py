"""The wire format of a batch: one Arrow record batch of one row, with a list column for each flattened tensor.

Received data is wrapped, not copied: each tensor of the Batch is a view of the message's buffer. The exception is ids.
They are sent as int32 if every table is small enough, which halves the message, and widened to the int64 of a Batch.
The lengths of features with one id per row are all 1; they are sent only if the schema also has bags.

Columns (``large_list``; B rows, F dense features, K pooled features, T labels): ``dense`` B·F float32, row by row ·
``bags`` ids, feature by feature · ``bag_lengths`` K·B int32, if the schema has bags · ``sequences``,
``sequence_lengths`` likewise · ``labels`` B·T float32 · ``counts`` B·T float32, if a label has weights of its own ·
``weights`` B float32 · ``groups`` B int64. ``rows`` holds B.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.schema import Schema
from ziggurat.core.untrusted import Damage
from ziggurat.data.ingest.received_rows import check_arrow, check_ids, check_single_ids

MAX_MESSAGE_BYTES = 2**30
"""Size of the largest message that a trainer accepts."""
_FRAME_BYTES = 2**16
"""What a message has besides its values: Arrow's description of them, and padding."""
_COLUMN_BYTES = 512
"""The same for each column of a block, besides its name."""


def wire_schema(schema: Schema) -> pa.Schema:
    """Returns the Arrow schema of the messages of a dataset with this ``schema``."""
    ids = pa.int64() if any(rows >= 2**31 for rows in schema.rows.values()) else pa.int32()
    columns = {"dense": pa.float32(), "labels": pa.float32()}
    if schema.pooled:
        columns["bags"] = ids
    if schema.bags:
        columns["bag_lengths"] = pa.int32()
    if schema.sequences:
        columns |= {"sequences": ids, "sequence_lengths": pa.int32()}
    if schema.counted:
        columns["counts"] = pa.float32()
    if schema.has_weight:
        columns["weights"] = pa.float32()
    if schema.has_group:
        columns["groups"] = pa.int64()
    fields = [pa.field(name, pa.large_list(pa.field("item", kind, nullable=False))) for name, kind in columns.items()]
    return pa.schema([pa.field("rows", pa.int64()), *fields])


def row_bytes(schema: Schema) -> int:
    """Returns the size of a row in a message, in bytes; of bags and sequences, as if each had one id."""
    labels = len(schema.labels) * (2 if schema.counted else 1)
    numbers = 4 * (len(schema.dense) + labels + schema.has_weight) + 8 * schema.has_group
    id_bytes = 8 if any(rows >= 2**31 for rows in schema.rows.values()) else 4
    lengths = 4 * (len(schema.sequences) + (len(schema.pooled) if schema.bags else 0))
    return numbers + id_bytes * len(schema.sparse) + lengths


def to_wire(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """Converts ``batch`` to a message with the given :func:`wire_schema`; narrows ids, does not copy other tensors."""
    tensors: dict[str, Tensor | None] = {
        "dense": batch.dense_BF,
        "labels": batch.labels_BT,
        "counts": batch.counts_BT,
        "weights": batch.weights_B,
        "groups": batch.groups_B,
        "bags": None if batch.bags is None else batch.bags.values(),
        "bag_lengths": None if batch.bags is None else batch.bags.lengths(),
        "sequences": None if batch.sequences is None else batch.sequences.values(),
        "sequence_lengths": None if batch.sequences is None else batch.sequences.lengths(),
    }
    columns: list[pa.Array] = [pa.array([batch.size], pa.int64())]
    for field in schema:
        if field.name != "rows":
            tensor = tensors[field.name]
            assert tensor is not None, field.name
            columns.append(_one_list(tensor, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def batch_message_bytes(schema: Schema, rows: int) -> int:
    """Returns the size of the largest message with a batch of ``rows`` rows that is accepted, in bytes."""
    if schema.bags or schema.sequences:
        return MAX_MESSAGE_BYTES
    return min(rows * row_bytes(schema) + _FRAME_BYTES, MAX_MESSAGE_BYTES)


def block_message_bytes(schema: Schema, rows: int) -> int:
    """Returns the size of the largest message with an encoded block of ``rows`` rows that is accepted, in bytes."""
    names = (*schema.dense, *schema.sparse, *schema.labels, *schema.counted)
    frame_bytes = sum(_COLUMN_BYTES + 4 * len(name) for name in names)
    return min(batch_message_bytes(schema, rows) + 8 * rows * schema.has_time + frame_bytes, MAX_MESSAGE_BYTES)


def from_wire(message: pa.RecordBatch, schema: Schema, rows: int, where: str, damage: Damage) -> Batch:
    """Converts a message to a batch of a dataset with this ``schema``, after checking all of it.

    Args:
        message: the message; its columns are those of :func:`wire_schema`.
        schema: the schema of the dataset.
        rows: the number of rows that were asked for.
        where: who sent it, for messages.
        damage: the errors to raise.

    Raises:
        ZigguratError: of class ``damage.error``: it holds other rows, or ids outside their tables.
    """
    check_arrow(message, 1, where, damage)
    claimed = message.column("rows")[0].as_py()
    if claimed != rows:
        raise damage.of(where, f"sent a batch of {claimed:,} rows where {rows:,} were asked for")
    sizes = {
        "dense": rows * len(schema.dense),
        "labels": rows * len(schema.labels),
        "counts": rows * len(schema.labels),
        "weights": rows,
        "groups": rows,
        "bag_lengths": rows * len(schema.pooled),
        "sequence_lengths": rows * len(schema.sequences),
    }
    arrived: dict[str, Tensor] = {}
    for name in message.schema.names[1:]:
        values = _only_list(message.column(name), name, where, damage)
        if name in sizes and len(values) != sizes[name]:
            raise damage.of(where, f"sent {len(values):,} values of {name!r} for {rows:,} rows, not {sizes[name]:,}")
        arrived[name] = torch.from_dlpack(values)  # via numpy it would be read-only, which torch does not support
    bags = arrived.get("bags"), arrived.get("bag_lengths")
    sequences = arrived.get("sequences"), arrived.get("sequence_lengths")
    return Batch(
        dense_BF=arrived["dense"].view(rows, len(schema.dense)),
        bags=_keyed(schema.pooled, *bags, rows, schema, where, damage),
        sequences=_keyed(schema.sequences, *sequences, rows, schema, where, damage),
        labels_BT=arrived["labels"].view(rows, len(schema.labels)),
        weights_B=arrived.get("weights"),
        groups_B=arrived.get("groups"),
        counts_BT=arrived["counts"].view(rows, len(schema.labels)) if schema.counted else None,
    ).validate(schema)


def _one_list(tensor: Tensor, kind: Any) -> pa.Array:
    values = pa.array(tensor.reshape(-1).numpy().astype(kind.value_type.to_pandas_dtype(), copy=False))
    offsets = pa.array(np.array([0, len(values)], np.int64))
    return pa.LargeListArray.from_arrays(offsets, values, type=kind)


def _only_list(column: pa.Array, name: str, where: str, damage: Damage) -> pa.Array:
    """Returns the values of the only list of a column."""
    values = column.values
    if column.offsets.to_pylist() != [0, len(values)] or values.null_count:
        raise damage.of(where, f"sent {name!r} as a list that is not all of its values")
    return values


def _keyed(
    keys: tuple[str, ...],
    ids: Tensor | None,
    lengths: Tensor | None,
    rows: int,
    schema: Schema,
    where: str,
    damage: Damage,
) -> KeyedJaggedTensor | None:
    if ids is None:
        return None
    if lengths is None:
        if len(ids) != len(keys) * rows:
            raise damage.of(where, f"sent {len(ids):,} ids for {rows:,} rows of {len(keys)} features")
        lengths = torch.ones(len(keys) * rows, dtype=torch.int32)
        check_single_ids(ids.view(len(keys), rows).numpy(), keys, schema, where, damage)
    else:
        if len(lengths) and int(lengths.min()) < 0:
            raise damage.of(where, f"sent the length {int(lengths.min())} of a list of ids")
        ends = lengths.view(len(keys), rows).sum(1).cumsum(0).tolist()
        if ends[-1] != len(ids):
            raise damage.of(where, f"sent {len(ids):,} ids, and lengths of lists for {ends[-1]:,}")
        for key, start, end in zip(keys, [0, *ends], ends, strict=False):
            check_ids(ids[start:end].numpy(), key, schema, where, damage)
    return KeyedJaggedTensor(keys=list(keys), values=ids.to(torch.int64), lengths=lengths, stride=rows)

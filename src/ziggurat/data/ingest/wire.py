"""The wire format of a batch: one Arrow record batch of one row, with a list column for each flattened tensor.

Received data is wrapped, not copied: each tensor of the Batch is a view of the message's buffer. The exception is ids.
They are sent as int32 if every table is small enough, which halves the message, and widened to the int64 of a Batch.
The lengths of features with one id per row are all 1; they are sent only if the schema also has bags.

Columns (``large_list``; B rows, F dense features, K pooled features, T labels): ``dense`` B·F float32, row by row ·
``bags`` ids, feature by feature · ``bag_lengths`` K·B int32, if the schema has bags · ``sequences``,
``sequence_lengths`` likewise · ``labels`` B·T float32 · ``weights`` B float32 · ``groups`` B int64. ``rows`` holds B.
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
    if schema.has_weight:
        columns["weights"] = pa.float32()
    if schema.has_group:
        columns["groups"] = pa.int64()
    fields = [pa.field(name, pa.large_list(pa.field("item", kind, nullable=False))) for name, kind in columns.items()]
    return pa.schema([pa.field("rows", pa.int64()), *fields])


def to_wire(batch: Batch, schema: pa.Schema) -> pa.RecordBatch:
    """Converts ``batch`` to a message with the given :func:`wire_schema`; narrows ids, does not copy other tensors."""
    tensors: dict[str, Tensor | None] = {
        "dense": batch.dense_BF,
        "labels": batch.labels_BT,
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


def from_wire(message: pa.RecordBatch, schema: Schema) -> Batch:
    """Converts a message to a batch of a dataset with this ``schema``."""
    rows: int = message.column("rows")[0].as_py()
    arrived = {name: _tensor(message.column(name)) for name in message.schema.names if name != "rows"}
    return Batch(
        dense_BF=arrived["dense"].view(rows, len(schema.dense)),
        bags=_keyed(schema.pooled, arrived.get("bags"), arrived.get("bag_lengths"), rows),
        sequences=_keyed(schema.sequences, arrived.get("sequences"), arrived.get("sequence_lengths"), rows),
        labels_BT=arrived["labels"].view(rows, len(schema.labels)),
        weights_B=arrived.get("weights"),
        groups_B=arrived.get("groups"),
    ).validate(schema)


def _one_list(tensor: Tensor, kind: Any) -> pa.Array:
    values = pa.array(tensor.reshape(-1).numpy().astype(kind.value_type.to_pandas_dtype(), copy=False))
    offsets = pa.array(np.array([0, len(values)], np.int64))
    return pa.LargeListArray.from_arrays(offsets, values, type=kind)


def _tensor(column: pa.Array) -> Tensor:
    return torch.from_dlpack(column.values)  # via numpy it would be read-only, which torch does not support


def _keyed(keys: tuple[str, ...], ids: Tensor | None, lengths: Tensor | None, rows: int) -> KeyedJaggedTensor | None:
    if ids is None:
        return None
    if lengths is None:
        lengths = torch.ones(len(keys) * rows, dtype=torch.int32)
    return KeyedJaggedTensor(keys=list(keys), values=ids.to(torch.int64), lengths=lengths, stride=rows)

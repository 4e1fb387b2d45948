"""The wire format of batches: a round trip changes nothing, for schemas with any combination of columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from tests.data.conftest import SCHEMA, encoded_rows
from ziggurat.core.batch import Batch
from ziggurat.core.errors import DataError
from ziggurat.core.schema import Schema
from ziggurat.data.encoded.columns import Columns
from ziggurat.data.ingest.connection import UNTRUSTED
from ziggurat.data.ingest.wire import from_wire, to_wire, wire_schema

SCHEMAS = {
    "everything": SCHEMA,
    "numbers alone": Schema(dense=("age",), labels=("click",)),
    "no numbers": replace(SCHEMA, dense=()),
    "single ids alone": replace(SCHEMA, dense=(), bags=(), sequences=(), has_weight=False, has_group=False),
    "sequences alone": replace(SCHEMA, dense=(), categorical=(), bags=()),
    "counted labels": replace(SCHEMA, counted=("click",)),
    "large tables": replace(SCHEMA, rows={**SCHEMA.rows, "item": 2**31}),
}

FROM = ("reader grpc://a:1", UNTRUSTED)
"""Who has sent a message, and what errors about it look like."""


def received(message: pa.RecordBatch) -> pa.RecordBatch:
    """Returns ``message`` as the receiver reads it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, message.schema) as stream:
        stream.write_batch(message)
    with pa.ipc.open_stream(sink.getvalue()) as stream:
        return stream.read_next_batch()


def check_jagged(left: KeyedJaggedTensor | None, right: KeyedJaggedTensor | None) -> None:
    assert (left is None) == (right is None)
    if left is not None and right is not None:
        assert left.keys() == right.keys()
        assert left.stride() == right.stride()
        assert left.values().dtype == right.values().dtype == torch.int64
        assert left.lengths().dtype == right.lengths().dtype
        assert torch.equal(left.values(), right.values())
        assert torch.equal(left.lengths(), right.lengths())


@pytest.mark.parametrize("name", SCHEMAS)
@pytest.mark.parametrize("rows", [1, 4, 100])
def test_a_round_trip_keeps_the_batch(name: str, rows: int) -> None:
    schema = SCHEMAS[name]
    batch = Columns([encoded_rows(200)], schema).batch(np.random.default_rng(0).permutation(200)[:rows])
    arrived = from_wire(received(to_wire(batch, wire_schema(schema))), schema, rows, *FROM)
    check_jagged(arrived.bags, batch.bags)
    check_jagged(arrived.sequences, batch.sequences)
    for attribute in ("dense_BF", "labels_BT", "weights_B", "groups_B", "counts_BT"):
        ours, theirs = getattr(arrived, attribute), getattr(batch, attribute)
        assert (ours is None) == (theirs is None)
        assert ours is None or (ours.dtype == theirs.dtype and torch.equal(ours, theirs))


def test_rows_without_any_id_arrive() -> None:
    """All bags and sequences are empty, so their buffers have zero bytes."""
    rows = 3
    none = torch.zeros(rows, dtype=torch.int32)
    schema = replace(SCHEMA, categorical=())
    empty = KeyedJaggedTensor(["tags"], torch.empty(0, dtype=torch.int64), lengths=none)
    history = KeyedJaggedTensor(["history"], torch.empty(0, dtype=torch.int64), lengths=none)
    batch = Batch(torch.zeros(rows, 1), empty, history, torch.zeros(rows, 1), torch.ones(rows), torch.arange(rows))
    arrived = from_wire(received(to_wire(batch, wire_schema(schema))), schema, rows, *FROM)
    check_jagged(arrived.bags, empty)
    check_jagged(arrived.sequences, history)


def test_received_tensors_are_not_copied() -> None:
    """Every tensor except the ids is a view of the message's buffer."""
    batch = Columns([encoded_rows(200)], SCHEMA).batch(np.arange(200))
    message = received(to_wire(batch, wire_schema(SCHEMA)))
    arrived = from_wire(message, SCHEMA, 200, *FROM)
    for name, tensor in (("dense", arrived.dense_BF), ("labels", arrived.labels_BT), ("groups", arrived.groups_B)):
        assert tensor is not None
        assert tensor.data_ptr() == message.column(name).values.buffers()[1].address


def test_ids_are_sent_as_int32_if_their_tables_allow() -> None:
    assert wire_schema(SCHEMA).field("bags").type.value_type == pa.int32()
    assert wire_schema(SCHEMAS["large tables"]).field("bags").type.value_type == pa.int64()
    assert "bag_lengths" not in wire_schema(SCHEMAS["single ids alone"]).names


@pytest.mark.parametrize(
    ("name", "wrong"), [("single ids alone", 1000), ("single ids alone", -1), ("large tables", 2**31)]
)
def test_ids_outside_their_tables_are_named(name: str, wrong: int) -> None:
    schema = SCHEMAS[name]
    batch = Columns([encoded_rows(4)], schema).batch(np.arange(4))
    assert batch.bags is not None
    batch.bags.values()[0] = wrong
    with pytest.raises(
        DataError, match=rf"reader grpc://a:1: sent the id {wrong} of feature 'user', whose table 'user'"
    ):
        from_wire(received(to_wire(batch, wire_schema(schema))), schema, 4, *FROM)

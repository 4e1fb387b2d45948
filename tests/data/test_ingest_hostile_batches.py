"""Readers that lie about batches: a trainer takes only the rows that it asked for, and names the reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.data.conftest import SCHEMA
from tests.data.lying_reader import SECONDS, WIRE, Liar, changed, pulled, write_dataset
from ziggurat.core.errors import DataError, ReadersLost
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.stream import Order, Stream
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.data.ingest.wire import to_wire


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("liars") / "dataset")


@pytest.fixture
def liar(dataset: Dataset) -> Iterator[Liar]:
    server = Liar(dataset)
    yield server
    server.shutdown()


def messages(ticket: Any, liar: Liar) -> list[pa.RecordBatch]:
    return [to_wire(batch, WIRE) for batch in liar.batches_of(ticket)]


def edited(message: pa.RecordBatch, column: str, values: Any) -> pa.RecordBatch:
    return changed(message, column, pa.array([values], WIRE.field(column).type))


def listed_values(message: pa.RecordBatch, column: str) -> list[Any]:
    return message.column(column)[0].as_py()


def first_changed(column: str, values: Callable[[list[Any]], Any]) -> Callable[[Any, Liar], list[pa.RecordBatch]]:
    def lie(ticket: Any, liar: Liar) -> list[pa.RecordBatch]:
        first, *others = messages(ticket, liar)
        return [edited(first, column, values(listed_values(first, column))), *others]

    return lie


def of_rows(rows: int) -> Callable[[Any, Liar], list[pa.RecordBatch]]:
    def lie(ticket: Any, liar: Liar) -> list[pa.RecordBatch]:
        stream = Stream(liar.dataset.split("train"), SCHEMA, Order(**ticket["order"]))
        return [to_wire(stream.batch(0, rows), WIRE)]

    return lie


def twice_the_rows(ticket: Any, liar: Liar) -> list[pa.RecordBatch]:
    first, *others = messages(ticket, liar)
    return [pa.concat_batches([first, first]), *others]


BATCHES: dict[str, tuple[Callable[[Any, Liar], list[pa.RecordBatch]], str]] = {
    "fewer batches": (lambda ticket, liar: messages(ticket, liar)[:-1], "ended its answer before rows"),
    "no batch": (lambda ticket, liar: [], "ended its answer before rows"),
    "more batches": (lambda ticket, liar: messages(ticket, liar) * 2, "sent more than the 4 batches"),
    "fewer rows": (of_rows(49), "sent a batch of 49 rows where 50 were asked for"),
    "more rows": (of_rows(51), "sent a batch of 51 rows where 50 were asked for"),
    "two rows": (twice_the_rows, "sent 2 rows where 1 were asked for"),
    "fewer numbers": (first_changed("dense", lambda each: each[:-1]), "sent 49 values of 'dense' for 50 rows, not 50"),
    "more labels": (first_changed("labels", lambda each: each * 2), "sent 100 values of 'labels'"),
    "no weights": (first_changed("weights", lambda each: []), "sent 0 values of 'weights'"),
    "fewer groups": (first_changed("groups", lambda each: each[1:]), "sent 49 values of 'groups'"),
    "fewer lengths": (first_changed("bag_lengths", lambda each: each[1:]), "sent 149 values of 'bag_lengths'"),
    "a negative length": (
        first_changed("sequence_lengths", lambda each: [-1, *each[1:]]),
        "sent the length -1 of a list of ids",
    ),
    "too long a list": (
        first_changed("bag_lengths", lambda each: [2**31 - 1, *each[1:]]),
        "ids, and lengths of lists for 2,147,48",
    ),
    "fewer ids": (first_changed("bags", lambda each: each[1:]), "ids, and lengths of lists for"),
    "an id outside its table": (
        first_changed("bags", lambda each: [1000, *each[1:]]),
        "sent the id 1000 of feature 'user', whose table 'user' has 1,000 rows",
    ),
    "a negative id": (first_changed("bags", lambda each: [*each[:-1], -5]), "sent the id -5 of feature 'tags'"),
    "an id of a sequence outside its table": (
        first_changed("sequences", lambda each: [*each[:-1], 500]),
        "sent the id 500 of feature 'history'",
    ),
    "an empty cell": (
        lambda ticket, liar: [changed(messages(ticket, liar)[0], "dense", pa.nulls(1, WIRE.field("dense").type))],
        "sent empty cells",
    ),
    "an unknown number of rows": (
        lambda ticket, liar: [changed(messages(ticket, liar)[0], "rows", pa.array([-(2**63)]))],
        "sent a batch of -9,223,372,036,854,775,808 rows",
    ),
}


@pytest.mark.parametrize("lie", BATCHES)
def test_batches_are_checked(liar: Liar, lie: str) -> None:
    tell, words = BATCHES[lie]
    liar.batches = lambda ticket: tell(ticket, liar)
    with pytest.raises(DataError) as caught:
        list(pulled(liar))
    assert caught.value.problem.startswith(f"reader {liar.address}: ")
    assert words in caught.value.problem


def test_lists_that_point_beyond_their_values_are_refused(liar: Liar) -> None:
    """Arrow reads such a message without a word; the values would be read from other memory."""

    def lie(ticket: Any) -> list[pa.RecordBatch]:
        first = messages(ticket, liar)[0]
        offsets = pa.py_buffer(np.array([0, 10**9], np.int64))
        wrong = pa.Array.from_buffers(
            WIRE.field("dense").type, 1, [None, offsets], children=[first.column("dense").values]
        )
        return [changed(first, "dense", wrong)]

    liar.batches = lie
    with pytest.raises(DataError, match=rf"reader {liar.address}: "):
        list(pulled(liar))


@pytest.mark.parametrize(
    "schema", [pa.schema([]), pa.schema([("a", pa.string())]), WIRE.remove(1), WIRE.append(WIRE.field(0))]
)
def test_other_columns_are_refused_before_rows(liar: Liar, schema: pa.Schema) -> None:
    liar.schema, liar.batches = schema, lambda ticket: []
    with pytest.raises(DataError, match=rf"reader {liar.address}: sent the columns "):
        list(pulled(liar))


def test_a_batch_beyond_all_bounds_is_not_received(liar: Liar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziggurat.data.ingest.wire.MAX_MESSAGE_BYTES", 2**20)
    liar.batches = lambda ticket: [edited(messages(ticket, liar)[0], "dense", [0.0] * 2**20)]
    with pytest.raises(DataError, match=rf"reader {liar.address}: sent a message that is larger than"):
        list(pulled(liar))


def test_bad_words_of_a_reader_are_shortened(liar: Liar, dataset: Dataset) -> None:
    def fail(ticket: Any) -> Iterator[pa.RecordBatch]:
        raise flight.FlightServerError("\x1b[2J" + "x" * 2000)
        yield

    liar.batches = fail
    local = Loader(dataset.split("train"), SCHEMA, 50, shuffle=True, seed=7, pool_blocks=3, prefetch=0)
    readers = IngestLoader(local, [liar.address], "train", dataset.fingerprint, SCHEMA, seconds=0.5)
    with pytest.raises(ReadersLost) as caught:
        list(readers.epoch(Cursor()))
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 700


def test_a_reader_of_another_schema_is_refused(liar: Liar, dataset: Dataset) -> None:
    other = replace(SCHEMA, dense=())
    local = Loader(dataset.split("train"), other, 50, shuffle=True, seed=7, pool_blocks=3, prefetch=0)
    readers = IngestLoader(local, [liar.address], "train", dataset.fingerprint, other, seconds=SECONDS)
    with pytest.raises(DataError, match=r"where|values of 'dense'"):
        list(readers.epoch(Cursor()))

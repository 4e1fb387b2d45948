"""A reader that lies to trainers, and what a trainer gets from it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from tests.data.conftest import SCHEMA, encoded_rows
from ziggurat.core.batch import Batch
from ziggurat.core.digests import digest
from ziggurat.data.encoded.dataset import Dataset, DatasetWriter
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.stream import Order, Stream
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.data.ingest.protocol import Description, FileList, ListedFile, ReaderIdentity
from ziggurat.data.ingest.wire import to_wire, wire_schema

SECONDS = 60
WIRE = wire_schema(SCHEMA)
Parts = Iterable[tuple[str, bytes]]


class Liar(flight.FlightServerBase):
    """A reader that answers as honest ones do, except for what a test replaces.

    Attributes:
        description, files: the results of the actions.
        schema, batches: the answer to a ticket.
    """

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset
        self.identity = ReaderIdentity.of_this_process(dataset.fingerprint)
        self.description: Iterable[bytes] = [Description(self.identity, False).to_bytes()]
        self.files: Iterable[bytes] = files_of([("manifest.json", json.dumps(dataset.manifest).encode())])
        self.schema: pa.Schema | None = None
        self.batches: Callable[[Any], Iterable[pa.RecordBatch]] = self.honest
        self.asked: list[Any] = []
        super().__init__(("127.0.0.1", 0))

    @property
    def address(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def honest(self, ticket: Any) -> Iterator[pa.RecordBatch]:
        if "block" in ticket:
            yield self.dataset.split(ticket["split"]).read(ticket["block"])
            return
        for batch in self.batches_of(ticket):
            yield to_wire(batch, WIRE)

    def batches_of(self, ticket: Any) -> Iterator[Batch]:
        stream = Stream(self.dataset.split(ticket["split"]), SCHEMA, Order(**ticket["order"]))
        for start, stop in ticket["ranges"]:
            yield stream.batch(start, stop)

    def do_action(self, context: Any, action: Any) -> Any:
        return iter({"describe": self.description, "files": self.files}[action.type])

    def do_get(self, context: Any, ticket: Any) -> Any:
        values = json.loads(ticket.ticket)
        self.asked.append(values)
        honest = self.dataset.split("test").read(0).schema if "block" in values else WIRE
        return flight.GeneratorStream(honest if self.schema is None else self.schema, iter(self.batches(values)))


def files_of(parts: Parts) -> list[bytes]:
    """Returns the results of the action ``files`` that send these files."""
    parts = list(parts)
    listed = [ListedFile(name, len(content), digest(content)) for name, content in parts]
    return [FileList(tuple(listed)).to_bytes(), *[content for _, content in parts if content]]


def write_dataset(folder: Path) -> Dataset:
    """Returns a dataset of 600 training rows and 100 test rows, in blocks of 64."""
    writer = DatasetWriter(folder, SCHEMA, block_rows=64)
    writer.append("train", encoded_rows(600))
    writer.append("test", encoded_rows(100))
    writer.finish("made-by-a-test", {})
    return Dataset(folder)


def pulled(liar: Liar) -> Iterator[Batch]:
    """Yields the training batches that a trainer gets from the liar."""
    local = Loader(liar.dataset.split("train"), SCHEMA, 50, shuffle=True, seed=7, pool_blocks=3, prefetch=0)
    fingerprint = liar.dataset.fingerprint
    readers = IngestLoader(local, [liar.address], "train", fingerprint, SCHEMA, segment_rows=200, seconds=SECONDS)
    for batch, _ in readers.epoch(Cursor()):
        yield batch


def changed(block: pa.RecordBatch, column: str, values: pa.Array) -> pa.RecordBatch:
    """Returns the rows with other values of one column."""
    columns = [values if name == column else block.column(name) for name in block.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=block.schema)

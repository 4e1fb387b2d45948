"""Readers that lie: a trainer writes nothing outside its folder, takes only what it asked for, and names the reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from tests.data.conftest import SCHEMA, encoded_rows
from ziggurat.core.batch import Batch
from ziggurat.core.digests import digest
from ziggurat.core.errors import DataError, ReadersLost
from ziggurat.core.progress import Silent
from ziggurat.core.sealed import sealed
from ziggurat.data.encoded.dataset import Dataset, DatasetWriter
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.stream import Order, Stream
from ziggurat.data.ingest.fetch import fetch_dataset
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


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("liars") / "dataset"
    writer = DatasetWriter(folder, SCHEMA, block_rows=64)
    writer.append("train", encoded_rows(600))
    writer.append("test", encoded_rows(100))
    writer.finish("made-by-a-test", {})
    return Dataset(folder)


@pytest.fixture
def liar(dataset: Dataset) -> Iterator[Liar]:
    server = Liar(dataset)
    yield server
    server.shutdown()


@pytest.fixture
def fetched(liar: Liar, tmp_path: Path) -> Iterator[Callable[[], str]]:
    """Returns a function that fetches the liar's dataset and returns the error, which names the liar."""
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "precious").write_text("precious")

    def fetch() -> str:
        with pytest.raises(DataError) as caught:
            fetch_dataset([liar.address], home / "copy", SECONDS, Silent())
        assert caught.value.problem.startswith(f"reader {liar.address}: ")
        assert "name readers that you trust" in caught.value.hint
        return caught.value.problem

    yield fetch
    assert list(home.iterdir()) == [], "nothing is left of a failed copy"
    assert (tmp_path / "precious").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "precious"]


def test_the_honest_answer_is_accepted(liar: Liar, tmp_path: Path, dataset: Dataset) -> None:
    copy = fetch_dataset([liar.address], tmp_path / "copy", SECONDS, Silent())
    assert copy.manifest == dataset.manifest
    assert copy.split("test").read(1).equals(dataset.split("test").read(1))
    assert sum(batch.size for batch in pulled(liar, dataset)) == 600


NAMES = (
    "/tmp/ziggurat-absolute", "../precious", "../../precious", "encoders/../../precious", "encoders/..", "encoders/.",
    "encoders/", "encoders/a/b", "encoders//a", "encoders\\a\x00b", "encoders/a\x00b", "encoders/a\nb", "", ".", "..",
    "manifest.json/", "./manifest.json", "train/00000.arrow", "test/00000.arrow", "config.yaml", "encoders",
    "statistics.json.exe", "~/x", "encoders/" + "x" * 256,
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_outside_a_dataset_are_refused(liar: Liar, fetched: Callable[[], str], name: str) -> None:
    manifest = liar.files
    honest = json.loads(next(iter(manifest)))["files"][0]
    evil = {"name": name, "bytes": 4, "checksum": digest(b"evil")}
    liar.files = [json.dumps({"files": [honest, evil]}).encode(), *list(manifest)[1:], b"evil"]
    assert re.search("announced the file|names the file", fetched())


def endless() -> Iterator[bytes]:
    while True:
        yield b"x" * 2**20


def listed(**changes: Any) -> bytes:
    return json.dumps(
        {"files": [{"name": "manifest.json", "bytes": 4, "checksum": digest(b"evil"), **changes}]}
    ).encode()


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "sent no list of the files"),
        ([b""], "its list of files: is not valid JSON"),
        ([b"not json"], "its list of files: is not valid JSON"),
        ([b"[" * 100_000], "its list of files: is nested deeper than 100 levels"),
        ([b"[]"], "its list of files: expected a JSON object"),
        ([b'{"files": 5}'], "its list of files: files: expected"),
        ([listed(name=5)], "files.0.name: expected a valid string"),
        ([listed(bytes=-1)], "announced the file 'manifest.json' with -1 bytes"),
        ([listed(bytes=True)], "files.0.bytes: expected a valid integer"),
        ([listed(bytes=10**18)], "would send 1,000,000,000,000,000,000 bytes; the disk"),
        ([json.dumps({"files": [json.loads(listed())["files"][0]] * 2}).encode()], "manifest.json' twice"),
        ([listed(), b"evil", b"more"], "sent more than the files that it had announced"),
        ([listed(), b"evi"], "sent only 3 bytes of manifest.json, and had announced 4"),
        ([listed(), b"evil "], "sent 5 or more bytes of manifest.json, and had announced 4"),
        ([listed(), b"live"], "sent a damaged manifest.json: its content differs from its checksum"),
        ([listed(), b"evil"], "sent no dataset: "),
        ([FileList(()).to_bytes()], "sent no dataset: "),
        (files_of([("manifest.json", b"{}")]), "sent no dataset: "),
        (files_of([("manifest.json", b"[" * 100_000)]), "sent no dataset: "),
    ],
)
def test_files_that_are_not_as_announced(
    liar: Liar, fetched: Callable[[], str], files: list[bytes], words: str
) -> None:
    liar.files = files
    assert words in fetched()


def test_an_endless_file_ends_at_its_announced_size(liar: Liar, fetched: Callable[[], str]) -> None:
    def parts() -> Iterator[bytes]:
        yield listed(bytes=2**22)
        yield from endless()

    liar.files = parts()
    assert re.search("damaged|or more bytes|sent more", fetched())


def test_an_endless_list_of_files_is_refused(liar: Liar, fetched: Callable[[], str]) -> None:
    file = json.loads(listed())["files"][0]
    liar.files = [json.dumps({"files": [{**file, "name": f"encoders/{n}"} for n in range(100_001)]}).encode()]
    assert "announced 100,001 files, at most 100,000" in fetched()


def test_a_message_beyond_all_bounds_is_not_received(liar: Liar, fetched: Callable[[], str]) -> None:
    liar.files = [b" " * (65 * 2**20)]
    assert "larger than what was asked for can be" in fetched()


@pytest.mark.parametrize(
    ("description", "words"),
    [
        ([], "sent no description of itself"),
        ([b"x" * 70_000], "sent no description of itself|larger than what was asked for"),
        ([b"{"], "its description: is not valid JSON"),
        ([b"{}"], "its description: lacks"),
        ([b'{"identity": {}, "costly": false}'], "its description: lacks identity.fingerprint"),
        (
            [json.dumps({"identity": asdict(ReaderIdentity.of_this_process("f")), "costly": 1}).encode()],
            "costly: expected",
        ),
        (
            [Description(ReaderIdentity.of_this_process("x\x1b[2J"), False).to_bytes()],
            "identity.fingerprint is no text",
        ),
    ],
)
def test_descriptions_are_checked(
    liar: Liar, fetched: Callable[[], str], dataset: Dataset, description: list[bytes], words: str
) -> None:
    liar.description = description
    assert re.search(words, fetched())
    with pytest.raises(DataError, match=words):
        list(pulled(liar, dataset))


def test_a_dataset_other_than_the_described_one_is_refused(liar: Liar, fetched: Callable[[], str]) -> None:
    liar.description = [Description(ReaderIdentity.of_this_process("described"), False).to_bytes()]
    assert "sent dataset 'made-by-a-te', and says that it serves dataset described" in fetched()


@pytest.mark.parametrize(
    "name", ["/tmp/ziggurat-absolute.arrow", "../../precious", "../encoders/x", "a/b", "", "..", "a\nb"]
)
@pytest.mark.parametrize("version", [1, 2])
def test_names_in_the_manifest_stay_in_its_folder(
    liar: Liar, fetched: Callable[[], str], dataset: Dataset, name: str, version: int
) -> None:
    manifest = json.loads(json.dumps(dataset.manifest))
    manifest["splits"]["test"]["files"][0]["name"] = name
    manifest["format_version"] = version
    liar.files = files_of([("manifest.json", json.dumps(sealed(manifest)).encode())])
    assert "sent no dataset: " in fetched()
    assert liar.asked == []


def version_1(dataset: Dataset) -> list[bytes]:
    """Returns the files of the dataset as an earlier version would have written it, without checksums."""
    manifest = json.loads(json.dumps(dataset.manifest))
    manifest["format_version"] = 1
    del manifest["xxh3_128"]
    for split in manifest["splits"].values():
        for file in split["files"]:
            del file["checksums"]
    return files_of([("manifest.json", json.dumps(manifest).encode())])


def changed(block: pa.RecordBatch, column: str, values: pa.Array) -> pa.RecordBatch:
    columns = [values if name == column else block.column(name) for name in block.schema.names]
    return pa.RecordBatch.from_arrays(columns, schema=block.schema)


def with_id(block: pa.RecordBatch, wrong: int) -> pa.RecordBatch:
    return changed(block, "item", pa.array([wrong] * block.num_rows, pa.int32()))


def with_list_id(block: pa.RecordBatch, wrong: int) -> pa.RecordBatch:
    return changed(block, "tags", pa.array([[wrong]] * block.num_rows, pa.list_(pa.int32())))


def with_nulls(block: pa.RecordBatch) -> pa.RecordBatch:
    return changed(block, "age", pa.array([None] * block.num_rows, pa.float32()))


BLOCKS: dict[str, tuple[Callable[[pa.RecordBatch], list[pa.RecordBatch]], str]] = {
    "an id outside its table": (lambda block: [with_id(block, 500)], "sent the id 500 of feature 'item'"),
    "a negative id": (lambda block: [with_id(block, -1)], "sent the id -1 of feature 'item'"),
    "an id in a list outside its table": (lambda block: [with_list_id(block, 20)], "sent the id 20 of feature 'tags'"),
    "empty cells": (lambda block: [with_nulls(block)], "sent empty cells"),
    "fewer rows": (lambda block: [block.slice(1)], "rows where 64 were asked for"),
    "two blocks": (lambda block: [block, block], "sent more than one block"),
    "no block": (lambda block: [], "sent no block"),
}


@pytest.mark.parametrize("lie", BLOCKS)
@pytest.mark.parametrize("has_checksums", [True, False])
def test_blocks_are_checked(
    liar: Liar, fetched: Callable[[], str], dataset: Dataset, lie: str, has_checksums: bool
) -> None:
    tell, words = BLOCKS[lie]
    if not has_checksums:
        liar.files = version_1(dataset)
    liar.batches = lambda ticket: tell(dataset.split("test").read(ticket["block"]))
    assert words in fetched()


def test_another_block_is_noticed(liar: Liar, fetched: Callable[[], str], dataset: Dataset) -> None:
    liar.batches = lambda ticket: [dataset.split("train").read(3)]
    assert "block 0 of test: is damaged: its content differs from its checksum" in fetched()


def test_other_columns_of_a_block_are_refused_before_its_rows(liar: Liar, fetched: Callable[[], str]) -> None:
    liar.schema = pa.schema([("a", pa.string())])
    liar.batches = lambda ticket: [pa.RecordBatch.from_pydict({"a": ["x" * 2**20]})]
    assert "sent the columns 'a: string'" in fetched()


def test_a_reader_that_fails_is_lost_and_named(liar: Liar, tmp_path: Path) -> None:
    liar.files = iter(lambda: 1 / 0, None)
    with pytest.raises(ReadersLost, match=rf"no reader has given its dataset for 0\.1 s\n  {liar.address}: "):
        fetch_dataset([liar.address], tmp_path / "copy", 0.1, Silent())


# ---- batches ----


def pulled(liar: Liar, dataset: Dataset) -> Iterator[Batch]:
    local = Loader(dataset.split("train"), SCHEMA, 50, shuffle=True, seed=7, pool_blocks=3, prefetch=0)
    readers = IngestLoader(
        local, [liar.address], "train", dataset.fingerprint, SCHEMA, segment_rows=200, seconds=SECONDS
    )
    for batch, _ in readers.epoch(Cursor()):
        yield batch


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
def test_batches_are_checked(liar: Liar, dataset: Dataset, lie: str) -> None:
    tell, words = BATCHES[lie]
    liar.batches = lambda ticket: tell(ticket, liar)
    with pytest.raises(DataError) as caught:
        list(pulled(liar, dataset))
    assert caught.value.problem.startswith(f"reader {liar.address}: ")
    assert words in caught.value.problem


def test_lists_that_point_beyond_their_values_are_refused(liar: Liar, dataset: Dataset) -> None:
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
        list(pulled(liar, dataset))


@pytest.mark.parametrize(
    "schema", [pa.schema([]), pa.schema([("a", pa.string())]), WIRE.remove(1), WIRE.append(WIRE.field(0))]
)
def test_other_columns_are_refused_before_rows(liar: Liar, dataset: Dataset, schema: pa.Schema) -> None:
    liar.schema, liar.batches = schema, lambda ticket: []
    with pytest.raises(DataError, match=rf"reader {liar.address}: sent the columns "):
        list(pulled(liar, dataset))


def test_a_batch_beyond_all_bounds_is_not_received(
    liar: Liar, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ziggurat.data.ingest.wire.MAX_MESSAGE_BYTES", 2**20)
    liar.batches = lambda ticket: [edited(messages(ticket, liar)[0], "dense", [0.0] * 2**20)]
    with pytest.raises(DataError, match=rf"reader {liar.address}: sent a message that is larger than"):
        list(pulled(liar, dataset))


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

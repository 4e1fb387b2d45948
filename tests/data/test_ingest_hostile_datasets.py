"""Readers that lie about a dataset: nothing is written outside its folder, and each error names the reader."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.data.lying_reader import SECONDS, Liar, changed, files_of, pulled, write_dataset
from ziggurat.core.digests import digest
from ziggurat.core.errors import DataError, ReadersLost
from ziggurat.core.progress import Silent
from ziggurat.core.sealed import sealed
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.ingest.fetch import fetch_dataset
from ziggurat.data.ingest.protocol import Description, FileList, ReaderIdentity


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return write_dataset(tmp_path_factory.mktemp("liars") / "dataset")


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
    assert sum(batch.size for batch in pulled(liar)) == 600


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
def test_descriptions_are_checked(liar: Liar, fetched: Callable[[], str], description: list[bytes], words: str) -> None:
    liar.description = description
    assert re.search(words, fetched())
    with pytest.raises(DataError, match=words):
        list(pulled(liar))


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

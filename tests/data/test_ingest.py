"""The ingestion tier with real reader processes: bit-identical to the local loader, even if readers fail."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tests.data.conftest import SCHEMA, encoded_rows
from tests.data.ingest_reader import ReaderProcess
from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError, DataError, ReadersLost
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset, DatasetWriter, SplitBlocks
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.encoded.stream import Order, PoolCache, Stream
from ziggurat.data.ingest.fetch import fetch_dataset
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.data.ingest.prepared import open_prepared
from ziggurat.data.ingest.protocol import BatchTicket, ReaderIdentity, Request
from ziggurat.data.ingest.server import IngestServer, ServedDataset

ROWS = 3000
Start = Callable[..., ReaderProcess]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("ingest") / "dataset"
    writer = DatasetWriter(folder, SCHEMA, block_rows=64)
    writer.append("train", encoded_rows(ROWS))
    writer.append("test", encoded_rows(100))
    writer.finish("made-by-a-test", {})
    return Dataset(folder)


@pytest.fixture(scope="module")
def readers(dataset: Dataset) -> Iterator[list[str]]:
    """Two readers that run during all tests."""
    both = [ReaderProcess(dataset.folder) for _ in range(2)]
    yield [reader.address for reader in both]
    for reader in both:
        reader.stop()


@pytest.fixture
def start(dataset: Dataset) -> Iterator[Start]:
    """Starts readers that a test may stop itself."""
    started: list[ReaderProcess] = []

    def begin(port: int = 0, costly: bool = False) -> ReaderProcess:
        started.append(ReaderProcess(dataset.folder, port, costly))
        return started[-1]

    yield begin
    for reader in started:
        reader.stop()


def local_loader(dataset: Dataset, batch_size: int = 50, **options: Any) -> Loader:
    chosen: dict[str, Any] = {"shuffle": True, "seed": 7, "pool_blocks": 3, "prefetch": 0, **options}
    return Loader(dataset.split("train"), SCHEMA, batch_size, **chosen)


def ingest_loader(dataset: Dataset, readers: list[str], source: Loader | None = None, **options: Any) -> IngestLoader:
    chosen: dict[str, Any] = {"segment_rows": 100, **options}
    return IngestLoader(source or local_loader(dataset), readers, "train", dataset.fingerprint, SCHEMA, **chosen)


def tensors(batch: Batch) -> list[torch.Tensor]:
    assert batch.bags is not None
    assert batch.sequences is not None
    assert batch.weights_B is not None
    assert batch.groups_B is not None
    jagged = [part for each in (batch.bags, batch.sequences) for part in (each.values(), each.lengths())]
    return [batch.dense_BF, *jagged, batch.labels_BT, batch.weights_B, batch.groups_B]


def check_equal(ours: list[tuple[Batch, Cursor]], expected: list[tuple[Batch, Cursor]]) -> None:
    assert [cursor for _, cursor in ours] == [cursor for _, cursor in expected]
    for (left, _), (right, _) in zip(ours, expected, strict=True):
        assert left.bags is not None
        assert right.bags is not None
        assert left.bags.keys() == right.bags.keys()
        for one, other in zip(tensors(left), tensors(right), strict=True):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)


def rows_of(batches: list[tuple[Batch, Cursor]]) -> list[int]:
    return [row for batch, _ in batches for row in tensors(batch)[-1].tolist()]


def collect_reader_messages(notes: list[str]) -> Callable[[str], None]:
    """Collects messages about single readers; messages about waiting depend on the speed of the machine."""
    return lambda note: notes.append(note) if note.startswith("reader ") else None


def test_waiting_for_readers_is_reported(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ziggurat.data.ingest.loader._REPORTED_WAIT_SECONDS", 0.0)
    monkeypatch.setattr("ziggurat.data.ingest.loader._REPORTED_WAIT_SHARE", 0.0)
    notes: list[str] = []
    server = IngestServer(open_prepared(dataset.folder))
    loader = ingest_loader(dataset, [f"127.0.0.1:{server.port}"], note=notes.append)
    list(loader.epoch(Cursor()))
    server.stop()
    assert len(notes) == 1
    assert re.match(r"waited \d+ s of this epoch's \d+ s for readers", notes[0])
    assert loader.waited_seconds > 0


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"batch_size": 700}, {"seed": 2**62}, {"pool_blocks": 99}])
def test_batches_equal_those_of_the_local_loader(dataset: Dataset, readers: list[str], options: dict[str, Any]) -> None:
    source = local_loader(dataset, **options)
    ours = ingest_loader(dataset, readers, source)
    assert (ours.rows, ours.steps_per_epoch) == (source.rows, source.steps_per_epoch)
    for epoch in (0, 1):
        check_equal(list(ours.epoch(Cursor(epoch))), list(source.epoch(Cursor(epoch))))
    assert ours.waited_seconds > 0


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_get_their_parts(dataset: Dataset, readers: list[str], world_size: int) -> None:
    seen: list[int] = []
    for rank in range(world_size):
        source = local_loader(dataset, rank=rank, world_size=world_size)
        ours = list(ingest_loader(dataset, readers, source).epoch(Cursor()))
        check_equal(ours, list(source.epoch(Cursor())))
        seen += rows_of(ours)
    assert sorted(seen) == list(range(ROWS))


def test_an_epoch_resumes_from_a_cursor(dataset: Dataset, readers: list[str]) -> None:
    source = local_loader(dataset)
    whole = list(source.epoch(Cursor(1)))
    for stop in (1, 2, 33, len(whole) - 1):
        check_equal(list(ingest_loader(dataset, readers).epoch(whole[stop - 1][1])), whole[stop:])


def test_leaving_an_epoch_ends_every_thread(dataset: Dataset, readers: list[str]) -> None:
    before = threading.active_count()
    batches = ingest_loader(dataset, readers).epoch(Cursor())
    next(batches)
    assert threading.active_count() == before + 2
    batches.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("signal_sent", "costly"), [(signal.SIGKILL, False), (signal.SIGKILL, True), (signal.SIGSTOP, False)]
)
def test_no_row_is_lost_or_repeated_when_a_reader_is_lost(
    dataset: Dataset, start: Start, signal_sent: signal.Signals, costly: bool
) -> None:
    both = [start(costly=costly), start(costly=costly)]
    expected = list(local_loader(dataset).epoch(Cursor()))
    notes: list[str] = []
    ours: list[tuple[Batch, Cursor]] = []
    # A stopped reader is detected by the time limit of its answer, half of `seconds`.
    loader = ingest_loader(dataset, [each.address for each in both], seconds=12, note=collect_reader_messages(notes))
    for item in loader.epoch(Cursor()):
        ours.append(item)
        if len(ours) == 10:
            both[0].process.send_signal(signal_sent)
    check_equal(ours, expected)
    assert sorted(rows_of(ours)) == list(range(ROWS))
    assert [note.partition(": ")[0] for note in notes] == [f"reader {both[0].address}"]
    assert "lost" in notes[0]


def test_a_reader_that_comes_back_is_used_again(dataset: Dataset, start: Start) -> None:
    first = start()
    notes: list[str] = []
    ours: list[tuple[Batch, Cursor]] = []
    for item in ingest_loader(dataset, [first.address], note=collect_reader_messages(notes)).epoch(Cursor()):
        ours.append(item)
        if len(ours) == 10:
            first.stop()
            start(first.port)
    check_equal(ours, list(local_loader(dataset).epoch(Cursor())))
    assert ["lost" in note for note in notes] == [True, False]
    assert notes[1] == f"reader {first.address}: back"


def test_if_all_readers_are_lost_each_is_named(dataset: Dataset, start: Start) -> None:
    both = [start(), start()]
    batches = ingest_loader(dataset, [each.address for each in both], seconds=4).epoch(Cursor())
    next(batches)
    for each in both:
        each.stop()
    with pytest.raises(ReadersLost, match="no reader has sent a batch for 4 s") as caught:
        list(batches)
    for each in both:
        assert f"{each.address}: " in caught.value.problem
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("pull")]


def test_a_reader_of_another_dataset_is_rejected(dataset: Dataset, readers: list[str]) -> None:
    other = IngestLoader(local_loader(dataset), readers, "train", "another", SCHEMA)
    with pytest.raises(DataError, match=r"serves dataset made-by-a-te.*trains on dataset another"):
        list(other.epoch(Cursor()))


def test_a_reader_of_another_version_is_rejected(dataset: Dataset) -> None:
    server = IngestServer(open_prepared(dataset.folder))
    server._identity = replace(server._identity, numpy="1.0")
    with pytest.raises(DataError, match=rf"numpy 1\.0.*numpy {np.__version__}"):
        list(ingest_loader(dataset, [f"127.0.0.1:{server.port}"]).epoch(Cursor()))
    server.stop()


def test_a_reader_that_changes_its_dataset_during_an_epoch_is_rejected(dataset: Dataset) -> None:
    server = IngestServer(open_prepared(dataset.folder))
    batches = ingest_loader(dataset, [f"127.0.0.1:{server.port}"]).epoch(Cursor())
    next(batches)
    server._identity = ReaderIdentity.of_this_process("another")
    with pytest.raises(DataError, match=r"asked for dataset made-by-a-te.*serves dataset another"):
        list(batches)
    server.stop()


def test_a_slow_trainer_slows_down_its_readers(dataset: Dataset) -> None:
    server = IngestServer(open_prepared(dataset.folder))
    taken = 0
    for batch, _ in ingest_loader(dataset, [f"127.0.0.1:{server.port}"]).epoch(Cursor()):
        served, _ = server.figures
        assert served <= taken + 3 * 100, "more rows are served than one segment per reader and two more"
        taken += batch.size
    assert taken == ROWS
    server.stop()


class CountingBlocks:
    """Blocks that count how often each was read."""

    def __init__(self, blocks: SplitBlocks) -> None:
        self.sizes, self.rows = blocks.sizes, blocks.rows
        self.reads: Counter[int] = Counter()
        self._blocks = blocks

    def read(self, block: int) -> pa.RecordBatch:
        self.reads[block] += 1
        return self._blocks.read(block)


def test_costly_readers_make_each_pool_once(dataset: Dataset) -> None:
    counted = [CountingBlocks(dataset.split("train")) for _ in range(3)]
    servers = [
        IngestServer(ServedDataset(dataset.fingerprint, SCHEMA, {"train": each}, costly=True)) for each in counted
    ]
    source = local_loader(dataset)
    loader = ingest_loader(dataset, [f"127.0.0.1:{server.port}" for server in servers], source)
    check_equal(list(loader.epoch(Cursor())), list(source.epoch(Cursor())))
    blocks = source.order(0).blocks(len(counted[0].sizes)).tolist()
    pools = [blocks[first : first + 3] for first in range(0, len(blocks), 3)]
    for number, each in enumerate(counted):
        assert each.reads == Counter(block for pool in pools[number::3] for block in pool)
    for server in servers:
        server.stop()


def test_threads_that_need_the_same_pool_read_it_once(dataset: Dataset) -> None:
    blocks = CountingBlocks(dataset.split("train"))
    stream = Stream(blocks, SCHEMA, Order(0, 0, False, 2), PoolCache(2))
    threads = [threading.Thread(target=stream.pool, args=(number,)) for number in (0, 1) * 8]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blocks.reads == Counter(range(4))
    stream.pool(2)  # the cache holds two
    stream.pool(1)
    assert blocks.reads[2] == 1
    stream.pool(0)
    assert blocks.reads[0] == 2


def test_a_reader_with_damaged_data_reports_it(tmp_path: Path) -> None:
    writer = DatasetWriter(tmp_path / "damaged", SCHEMA, block_rows=64)
    writer.append("train", encoded_rows(200))
    writer.finish("made-by-a-test", {})
    damaged = Dataset(tmp_path / "damaged")
    (damaged.folder / "train" / "00000.arrow").write_bytes(b"ARROW1")
    server = IngestServer(open_prepared(damaged.folder))
    with pytest.raises(ReadersLost, match=r"it cannot give this answer; its own output says why"):
        list(ingest_loader(damaged, [f"127.0.0.1:{server.port}"], seconds=0.5).epoch(Cursor()))
    server.stop()
    assert re.search(r"00000\.arrow: block \d cannot be read", server.refusals.take()[0])


def test_a_dataset_is_fetched_without_its_training_rows(tmp_path: Path, dataset: Dataset, readers: list[str]) -> None:
    encoders = dataset.folder / "encoders"
    encoders.mkdir(exist_ok=True)
    (encoders / "transform.json").write_text("{}")
    (encoders / "large.bin").write_bytes(bytes(range(256)) * 2**17)  # 32 MiB, more than one part
    (encoders / "empty").touch()
    server = IngestServer(open_prepared(dataset.folder))
    stopped = ReaderProcess(dataset.folder)
    gone = stopped.address
    stopped.stop()
    copy = fetch_dataset([gone, f"grpc://127.0.0.1:{server.port}"], tmp_path / "copy", 5, Silent())
    server.stop()
    assert copy.manifest == dataset.manifest
    for path in encoders.iterdir():
        assert (tmp_path / "copy" / "encoders" / path.name).read_bytes() == path.read_bytes()
    for block in range(2):
        assert copy.split("test").read(block).equals(dataset.split("test").read(block))
    with pytest.raises(DataError, match=r"train: the rows of this split are not here"):
        copy.split("train").read(0)
    source = Loader(copy.split("train"), SCHEMA, 50, shuffle=True, seed=7, pool_blocks=3)
    check_equal(list(ingest_loader(copy, readers, source).epoch(Cursor())), list(local_loader(dataset).epoch(Cursor())))


def test_a_failed_fetch_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ReadersLost, match=r"no reader has given its dataset for 0\.1 s\n  grpc://127\.0\.0\.1:1: "):
        fetch_dataset(["grpc://127.0.0.1:1"], tmp_path / "copy", 0.1, Silent())
    assert not list(tmp_path.iterdir())


def test_a_port_in_use_is_named(dataset: Dataset) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"127\.0\.0\.1:{port}: cannot be listened on \(Address already in use\)"
        ):
            IngestServer(open_prepared(dataset.folder), port=port)


PARENT = """
import functools, sys, time
from pathlib import Path
from ziggurat.data.ingest.prepared import open_prepared
from ziggurat.data.ingest.processes import ReaderProcesses

with ReaderProcesses(functools.partial(open_prepared, Path(sys.argv[1])), "127.0.0.1", 0, 1) as readers:
    print(readers.addresses[0].rpartition(":")[2], flush=True)
    time.sleep(600)
"""


def test_readers_end_with_their_parent(dataset: Dataset) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT, dataset.folder], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    port = int(parent.stdout.readline())
    socket.create_connection(("127.0.0.1", port)).close()
    parent.kill()
    parent.communicate()
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            break
        assert time.monotonic() < until, "the reader outlives its parent"
        time.sleep(0.1)


@pytest.mark.parametrize("address", ["", "host", "host:0", "host:70000", "http://host:80", "grpc://host:80/x", "a b:1"])
def test_malformed_addresses_are_rejected(dataset: Dataset, address: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a reader"):
        ingest_loader(dataset, [address])


def test_a_ticket_survives_a_round_trip() -> None:
    ticket = BatchTicket(
        ReaderIdentity.of_this_process("f"), "train", Order(3, 2**63 - 1, True, 8), [range(5, 9), range(9, 10)]
    )
    assert Request(ticket.to_bytes()).ticket() == ticket

"""What a reader refuses: malformed tickets, with a word about what is wrong, and without a trace of its code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from tests.data.conftest import SCHEMA, encoded_rows
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset, DatasetWriter
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.data.ingest.fetch import fetch_dataset
from ziggurat.data.ingest.loader import IngestLoader
from ziggurat.data.ingest.prepared import open_prepared
from ziggurat.data.ingest.protocol import MAX_RANGES, REFUSED, ReaderIdentity
from ziggurat.data.ingest.server import IngestServer
from ziggurat.network.access import Access, Credentials
from ziggurat.network.flight_client import call_options, connect, first_line
from ziggurat.network.limits import Limits

ROWS = 3000
IDENTITY = json.loads(ReaderIdentity.of_this_process("made-by-a-test").to_bytes())
ORDER = {"epoch": 0, "seed": 7, "shuffle": True, "pool_blocks": 3}
GOOD = {**IDENTITY, "split": "train", "order": ORDER, "ranges": [[0, 50], [50, 100]]}
BLOCK = {**IDENTITY, "split": "test", "block": 0}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("ingest") / "dataset"
    writer = DatasetWriter(folder, SCHEMA, block_rows=64)
    writer.append("train", encoded_rows(ROWS))
    writer.append("test", encoded_rows(100))
    writer.finish("made-by-a-test", {})
    return Dataset(folder)


@pytest.fixture(scope="module")
def server(dataset: Dataset) -> Iterator[IngestServer]:
    started = IngestServer(open_prepared(dataset.folder), limits=Limits(refusal_pause_s=0.0))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def client(server: IngestServer) -> flight.FlightClient:
    return connect(f"grpc://127.0.0.1:{server.port}", Credentials())


def options() -> flight.FlightCallOptions:
    return call_options(Credentials(), 60)


def refusal(client: flight.FlightClient, ticket: bytes) -> str:
    with pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(ticket), options()).read_all()
    for secret in ("Traceback", ".py", "/work", "/tmp", "site-packages"):
        assert secret not in str(caught.value)
    return first_line(caught.value)


def ticket(base: dict[str, Any], **changes: Any) -> bytes:
    return json.dumps({**base, **changes}).encode()


def test_the_good_tickets_are_good(client: flight.FlightClient) -> None:
    assert client.do_get(flight.Ticket(ticket(GOOD)), options()).read_all().num_rows == 2
    assert client.do_get(flight.Ticket(ticket(BLOCK)), options()).read_all().num_rows == 64


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "the ticket: is not valid JSON"),
        (b"\xff\xfe", "the ticket: is not valid JSON"),
        (b"[1, 2", "the ticket: is not valid JSON"),
        (b"[" * 10_000, "the ticket: is nested deeper than 100 levels"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "the ticket: is nested deeper than 100 levels"),
        (b"[]", "the ticket: expected a JSON object, received []"),
        (b"null", "the ticket: expected a JSON object, received None"),
        (b"{}", "the ticket: lacks identity"),
        (b'{"identity": 1, "identity": 2}', "occurs twice"),
        (b"1" * 5000, "the ticket: is not valid JSON"),
    ],
)
def test_what_is_no_ticket(client: flight.FlightClient, data: bytes, words: str) -> None:
    assert words in refusal(client, data)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"split": "secret"}, "the split 'secret' is not served; train, validation, test are"),
        ({"split": "../train"}, "the split '../train' is not served"),
        ({"split": None}, "split: expected a valid string, received None"),
        ({"split": "validation"}, "the ticket asks for rows 0 to 50; the split has 0"),
        ({"ranges": []}, "the ticket: has no range"),
        ({"ranges": {}}, "ranges: expected a valid"),
        ({"ranges": [[0]]}, "the ticket: has the range [0]; a range is [start, stop]"),
        ({"ranges": [[0, 1], [0, 1, 2]]}, "the ticket: has the range [0, 1, 2]; a range is [start, stop]"),
        ({"ranges": [[5, 5]]}, "the ticket: has the range [5, 5]"),
        ({"ranges": [[9, 5]]}, "the ticket: has the range [9, 5]"),
        ({"ranges": [[-1, 5]]}, "the ticket: has the range [-1, 5]"),
        ({"ranges": [[0, 10**30]]}, "the ticket: has the range [0, 10000000000000000000…]"),
        ({"ranges": [[0, 1.0]]}, "ranges.0.1: expected a valid integer"),
        ({"ranges": [[False, True]]}, "ranges.0.0: expected a valid integer"),
        ({"ranges": [[0, "5"]]}, "ranges.0.1: expected a valid integer"),
        ({"ranges": [[0, ROWS + 1]]}, f"asks for rows 0 to {ROWS + 1}; the split has {ROWS:,}"),
        ({"ranges": [[0, 2**21]]}, "the ticket: asks for 2,097,152 rows; at most 1,048,576 are allowed"),
        ({"ranges": [[0, 1]] * (MAX_RANGES + 1)}, "the ticket: has 4,097 ranges; 1 to 4,096 are allowed"),
        ({"order": None}, "order: expected"),
        ({"order": {}}, "the ticket: lacks order.epoch"),
        ({"order": {**ORDER, "epoch": -1}}, "order.epoch is -1"),
        ({"order": {**ORDER, "epoch": 2**31}}, "order.epoch is 2147483648"),
        ({"order": {**ORDER, "epoch": True}}, "order.epoch: expected a valid integer"),
        ({"order": {**ORDER, "seed": -1}}, "order.seed is -1"),
        ({"order": {**ORDER, "seed": 2**64}}, "order.seed is 18446744073709551616"),
        ({"order": {**ORDER, "shuffle": 1}}, "order.shuffle: expected a valid boolean"),
        ({"order": {**ORDER, "pool_blocks": 0}}, "order.pool_blocks is 0; 1 or more are allowed"),
        ({"order": {**ORDER, "pool_blocks": float("nan")}}, "order.pool_blocks: expected"),
    ],
)
def test_tickets_for_batches_are_checked(client: flight.FlightClient, changes: dict[str, Any], words: str) -> None:
    assert words in refusal(client, ticket(GOOD, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"block": -1}, "the ticket asks for block -1 of 2 of split test"),
        ({"block": 2}, "the ticket asks for block 2 of 2 of split test"),
        ({"block": 10**40}, "the ticket asks for block 1000"),
        ({"block": True}, "block: expected a valid integer"),
        ({"block": 0.0}, "block: expected a valid integer"),
        ({"block": None}, "block: expected a valid integer"),
        ({"split": "no"}, "the split 'no' is not served"),
        ({"split": ["test"]}, "split: expected a valid string"),
    ],
)
def test_tickets_for_blocks_are_checked(client: flight.FlightClient, changes: dict[str, Any], words: str) -> None:
    assert words in refusal(client, ticket(BLOCK, **changes))


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ({"fingerprint": "another"}, "asked for dataset another"),
        ({"numpy": "1.0"}, "numpy 1.0"),
        ({"protocol": 1}, "protocol 1"),
    ],
)
@pytest.mark.parametrize("base", [GOOD, BLOCK])
def test_another_identity_is_a_permanent_refusal(
    client: flight.FlightClient, base: dict[str, Any], identity: dict[str, Any], words: str
) -> None:
    changed = ticket(base, identity={**IDENTITY["identity"], **identity}, split="also wrong")
    with pytest.raises(flight.FlightServerError) as caught:
        client.do_get(flight.Ticket(changed), options()).read_all()
    assert caught.value.extra_info == REFUSED
    assert words in str(caught.value)


@pytest.mark.parametrize("fingerprint", ["x" * 257, "a\x1b[31m", 5, None])
def test_an_identity_is_short_text(client: flight.FlightClient, fingerprint: Any) -> None:
    words = refusal(client, ticket(GOOD, identity={**IDENTITY["identity"], "fingerprint": fingerprint}))
    assert "identity.fingerprint" in words


def test_files_need_an_identity(client: flight.FlightClient) -> None:
    def ask(body: bytes) -> list[Any]:
        return list(client.do_action(flight.Action("files", body), options()))

    with pytest.raises(flight.FlightServerError, match="the ticket: is not valid JSON"):
        ask(b"")
    with pytest.raises(flight.FlightServerError, match="asked for dataset another"):
        ask(ReaderIdentity.of_this_process("another").to_bytes())
    assert len(ask(ReaderIdentity.of_this_process("made-by-a-test").to_bytes())) == 2


def test_other_actions_are_named(client: flight.FlightClient) -> None:
    with pytest.raises(flight.FlightServerError, match="the action 'delete' is not offered"):
        list(client.do_action(flight.Action("delete", b""), options()))
    for body in (b"", ticket(BLOCK), ticket(GOOD, ranges=[[0, 10**9]])):
        with pytest.raises(flight.FlightServerError):
            list(client.do_action(flight.Action("warm", body), options()))


def test_pools_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pool of all blocks would be the whole dataset in memory."""
    monkeypatch.setattr("ziggurat.data.ingest.server._POOL_ROWS", 1000)
    writer = DatasetWriter(tmp_path / "dataset", SCHEMA, block_rows=64)
    writer.append("train", encoded_rows(ROWS))
    writer.finish("made-by-a-test", {})
    server = IngestServer(open_prepared(tmp_path / "dataset"), limits=Limits(refusal_pause_s=0.0))
    try:
        client = connect(f"grpc://127.0.0.1:{server.port}", Credentials())
        words = refusal(client, ticket(GOOD, order={**ORDER, "pool_blocks": 10**30}))
        assert words.endswith("blocks; 15 are allowed")
        for blocks in (8, 15):
            fine = ticket(GOOD, order={**ORDER, "pool_blocks": blocks})
            assert client.do_get(flight.Ticket(fine), options()).read_all().num_rows == 2
    finally:
        server.stop()


def test_a_good_trainer_is_served_beside_bad_clients(server: IngestServer, dataset: Dataset) -> None:
    address = f"grpc://127.0.0.1:{server.port}"
    source = Loader(dataset.split("train"), SCHEMA, 50, shuffle=True, seed=7, pool_blocks=3, prefetch=0)
    good = IngestLoader(source, [address], "train", dataset.fingerprint, SCHEMA, segment_rows=100, seconds=60)
    bad = connect(address, Credentials())
    rows = 0
    for number, (batch, _) in enumerate(good.epoch(Cursor())):
        rows += batch.size
        if number % 10 == 0:
            refusal(bad, b"{" * (number + 1))
    assert rows == ROWS


def test_many_small_batches_are_requested_in_several_tickets(
    server: IngestServer, dataset: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ziggurat.data.ingest.loader.MAX_RANGES", 7)
    monkeypatch.setattr("ziggurat.data.ingest.loader.MAX_ROWS", 20)
    source = Loader(dataset.split("train"), SCHEMA, 50, shuffle=True, seed=7, pool_blocks=3, prefetch=0)
    loader = IngestLoader(source, [f"127.0.0.1:{server.port}"], "train", dataset.fingerprint, SCHEMA)
    asked = list(loader._segments(Cursor(), source.stream(0).starts))
    assert max(len(each.pending) for each in asked) <= 7
    assert max(len(part) for each in asked for part in each.pending) == 20
    for (ours, after), (theirs, expected) in zip(loader.epoch(Cursor()), source.epoch(Cursor()), strict=True):
        assert after == expected
        assert ours.dense_BF.equal(theirs.dense_BF)


def test_a_trainer_with_the_wrong_token_is_told(tmp_path: Path, dataset: Dataset) -> None:
    token = "0123456789abcdef" * 4
    server = IngestServer(open_prepared(dataset.folder), access=Access(token), limits=Limits(refusal_pause_s=0.0))
    try:
        address = f"grpc://127.0.0.1:{server.port}"
        source = Loader(dataset.split("train"), SCHEMA, 50, shuffle=True, seed=7, pool_blocks=3, prefetch=0)
        for credentials in (Credentials(), Credentials("x" * 64)):
            loader = IngestLoader(
                source, [address], "train", dataset.fingerprint, SCHEMA, credentials=credentials, seconds=60
            )
            with pytest.raises(
                Exception, match=rf"reader {address}: refuses this trainer.*\n  hint: set training\.reader_token_file"
            ):
                next(loader.epoch(Cursor()))
            with pytest.raises(Exception, match=rf"reader {address}: refuses this trainer"):
                fetch_dataset([address], tmp_path / "copy", 60, Silent(), credentials)
        good = Credentials(token)
        copy = fetch_dataset([address], tmp_path / "copy", 60, Silent(), good)
        loader = IngestLoader(source, [address], "train", copy.fingerprint, SCHEMA, credentials=good)
        assert sum(batch.size for batch, _ in loader.epoch(Cursor())) == ROWS
    finally:
        server.stop()

"""Checkpoints on an S3 server, and the messages about errors of the store, the network or the user."""

from __future__ import annotations

import importlib
import json
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_kit import Table, load_tensors, same_bits, saver
from torch import Tensor
from typer.testing import CliRunner

from tests.s3_kit import Proxy
from ziggurat.checkpoint import writer as writing
from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format import blocks
from ziggurat.checkpoint.store.object_store import ObjectStore, open_store
from ziggurat.checkpoint.store.store import Unreachable
from ziggurat.checkpoint.writer import Best
from ziggurat.cli.main import app
from ziggurat.core.errors import DataError, EnvironmentMismatch, RunFolderError, ZigguratError

POLICIES = ("full", "one_shot", "consecutive", "intermittent")
DENSE = {"dense/w": torch.arange(6.0).view(2, 3)}


@pytest.mark.parametrize("policy", POLICIES)
def test_checkpoints_come_back_from_the_store(s3: str, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    monkeypatch.setattr(writing, "CHUNK_BYTES", 2_000)
    monkeypatch.setattr(blocks, "FILE_BYTES", 4_000)
    folder, tables = CheckpointFolder(open_store(s3)), (Table("user", 120, 7), Table("item", 60, 3, seed=1))
    expected: dict[int, dict[str, Tensor]] = {}
    with saver(folder, *tables, policy=policy, consecutive_deltas=2) as saving:
        for step in range(1, 4):
            dense = {"dense/w": DENSE["dense/w"] + step}
            saving.save(step, dense, {"step": step}, best=Best("auc", 0.5) if step == 2 else None)
            expected[step] = {k: v for table in tables for k, v in table.tensors().items()} | dense
            for table in tables:
                table.change(9)
    again = CheckpointFolder(open_store(s3))
    steps = again.steps()
    assert {2, 3} <= set(steps)
    assert same_bits(load_tensors(again, "best"), expected[2])
    assert again.load("best").state == {"step": 2}
    gone = again.prune(keep=1)
    assert {2, 3} <= set(again.steps()) == set(steps) - set(gone)
    assert same_bits(load_tensors(again, "last"), expected[3])


def test_a_damaged_object_is_named(s3: str) -> None:
    folder, table = CheckpointFolder(open_store(s3)), Table()
    with saver(folder, table) as saving:
        saving.save(1, DENSE, {})
    for name in folder.store.files("step-00000001"):
        data = folder.store.read("step-00000001", name)
        folder.store.write("step-00000001", name, data[:-9] + b"\0" * 9)
        with pytest.raises(RunFolderError, match=f"{s3}/step-00000001/{name}"):
            folder.load(1).verify()
        folder.store.delete("step-00000001", name)
        with pytest.raises(RunFolderError, match=name if "rank" in name else "no checkpoint"):
            folder.load(1).verify()
        folder.store.write("step-00000001", name, data)
    folder.load(1).verify()


def test_listings_of_more_than_a_page(s3: str, proxy: Proxy) -> None:
    from moto.s3.models import s3_backends

    store = ObjectStore(s3)
    names = [f"rank-{number:05d}" for number in range(1003)]
    behind = next(iter(s3_backends["123456789012"].values()))
    for name in names:
        behind.put_object(s3.removeprefix("s3://").partition("/")[0], f"run/step-1/{name}", b"")
    assert sorted(store.files("step-1")) == names
    assert proxy.count("GET") == 2
    proxy.seen.clear()
    store.delete("step-1")
    assert store.files("step-1") == []
    assert len(proxy.seen) < 12


def test_a_file_is_one_request(s3: str, proxy: Proxy) -> None:
    store = ObjectStore(s3)
    store.write("step-1", "a", b"a" * 40_000_000)
    assert len(store.read("step-1", "a")) == 40_000_000
    assert [method for method, _ in proxy.seen] == ["PUT", "GET"]


@pytest.mark.parametrize("fault", ["503", "cut", "lost", "slow"])
def test_a_write_that_fails_temporarily_is_repeated(s3: str, proxy: Proxy, fault: str) -> None:
    store = ObjectStore(s3)
    proxy.faults.append(fault)
    store.write("step-1", "a", b"content")
    assert proxy.count("PUT") == (1 if fault == "slow" else 2)
    assert store.read("step-1", "a") == b"content"


@pytest.mark.parametrize("fault", ["500", "half"])
def test_a_read_that_fails_temporarily_is_repeated(s3: str, proxy: Proxy, fault: str) -> None:
    store = ObjectStore(s3)
    store.write("step-1", "a", b"content" * 100)
    proxy.on = "GET"
    proxy.faults.append(fault)
    assert store.read("step-1", "a") == b"content" * 100
    assert proxy.count("GET") == 2


def test_a_listing_that_fails_temporarily_is_repeated(s3: str, proxy: Proxy) -> None:
    store = ObjectStore(s3)
    store.write("step-1", "a", b"")
    proxy.on = "GET"
    proxy.faults.append("cut")
    assert store.files("step-1") == ["a"]
    assert proxy.count("GET") == 2


def test_a_store_that_keeps_failing_is_reported(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, clear_clients: Callable[[], None]
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    clear_clients()
    store = ObjectStore(s3)
    proxy.always = "500"
    with pytest.raises(DataError, match=rf"{s3}/step-1/a: cannot be written: the store answers 500 InternalError"):
        store.write("step-1", "a", b"content")
    assert proxy.count("PUT") == 2
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    clear_clients()
    store = ObjectStore(s3)
    proxy.on = "GET"
    with pytest.raises(RunFolderError, match=rf"{s3}/step-1/a: cannot be read: the store answers 500"):
        store.read("step-1", "a")
    with pytest.raises(RunFolderError, match=rf"{s3}/step-1: cannot be listed: the store answers 500"):
        store.files("step-1")
    proxy.on = "DELETE"
    with pytest.raises(DataError, match=rf"{s3}/step-1/a: cannot be deleted: the store answers 500"):
        store.delete("step-1", "a")
    proxy.on, proxy.always = "GET", "cut"
    with pytest.raises(RunFolderError, match="no connection to the store") as caught:
        store.files("step-1")
    assert f"AWS_ENDPOINT_URL is {proxy.url}" in caught.value.hint


@pytest.mark.parametrize("request_number", [1, 3])
def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, request_number: int
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    folder, table = CheckpointFolder(ObjectStore(s3)), Table()
    with saver(folder, table) as saving:
        saving.save(1, DENSE, {})
        expected = table.tensors() | DENSE
        saving.finish()
        table.change(20)
        proxy.faults.extend([""] * (request_number - 1))
        proxy.always = "500"
        saving.save(2, DENSE, {})
        with pytest.raises(DataError, match=rf"{s3}/step-00000002/\S+: cannot be written"):
            saving.finish()
        proxy.faults.clear()
        proxy.always = ""
        assert folder.steps() == [1]
        assert same_bits(load_tensors(folder, "last"), expected)
        saving.save(3, DENSE, {})
        expected = table.tensors() | DENSE
    assert same_bits(load_tensors(folder, 3), expected)
    with saver(folder, table):
        assert folder.store.folders() == ["step-00000001", "step-00000003"]


def test_training_does_not_wait_for_a_slow_store(s3: str, proxy: Proxy) -> None:
    folder, table = CheckpointFolder(ObjectStore(s3)), Table()
    with saver(folder, table) as saving:
        proxy.faults.extend(["slow"] * 3)
        saving.save(1, DENSE, {})
        expected = table.tensors() | DENSE
        assert proxy.faults  # training continues before the store has received anything
        table.change(50)
    assert not proxy.faults
    assert same_bits(load_tensors(folder, 1), expected)


def test_a_missing_bucket_is_named(s3: str) -> None:
    store = ObjectStore("s3://nobody-has-this/run")
    for failing in (store.folders, lambda: store.files("step-1"), lambda: store.read("step-1", "a")):
        with pytest.raises(RunFolderError, match="there is no bucket 'nobody-has-this'") as caught:
            failing()
        assert "s3://nobody-has-this/run" in caught.value.problem
        assert "AWS_ENDPOINT_URL is http://127.0.0.1" in caught.value.hint
    with pytest.raises(DataError, match="there is no bucket 'nobody-has-this'"):
        store.write("step-1", "a", b"")


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://no-such-host.invalid", "no-scheme"])
def test_an_endpoint_that_does_not_answer_is_named(s3: str, monkeypatch: pytest.MonkeyPatch, endpoint: str) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(RunFolderError, match=f"{s3}: cannot be listed: ") as caught:
        ObjectStore(s3).folders()
    assert endpoint in caught.value.problem
    assert f"AWS_ENDPOINT_URL is {endpoint}" in caught.value.hint


def test_missing_credentials_are_named(
    s3: str, monkeypatch: pytest.MonkeyPatch, clear_clients: Callable[[], None]
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    clear_clients()
    with pytest.raises(RunFolderError, match="no credentials for bucket 'bucket-") as caught:
        ObjectStore(s3).folders()
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint


def test_refused_credentials_are_named(s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.on, proxy.always = "PUT", "403"
    with pytest.raises(DataError, match=r"the store refuses these credentials \(AccessDenied\): as told") as caught:
        ObjectStore(s3).write("step-1", "a", b"")
    assert "list, read, write and delete in bucket 'bucket-" in caught.value.hint
    assert proxy.count("PUT") == 1


def test_commands_take_a_stores_url_and_call_no_checkpoint_broken_if_the_store_does_not_answer(
    s3: str, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, clear_clients: Callable[[], None]
) -> None:
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    clear_clients()
    with pytest.raises(RunFolderError, match="run: no checkpoint"):
        run_checkpoint_command("list", s3)
    with saver(CheckpointFolder(open_store(s3)), Table()) as saving:
        saving.save(7, DENSE, {})
    assert [each["step"] for each in run_checkpoint_command("list", s3)["entries"]] == [7]
    assert run_checkpoint_command("verify", s3)["whole"] is True
    with pytest.raises(RunFolderError, match="only a run's folder says which checkpoints belong to it"):
        run_checkpoint_command("prune", s3, "--keep", "1")
    proxy.on, proxy.faults = "GET", deque(["", "", "", ""])
    proxy.always = "503"
    for _ in range(12):  # the fault begins at another request each time
        with pytest.raises(Unreachable, match=rf"{s3}.*cannot be (read|listed): the store answers 503"):
            run_checkpoint_command("verify", s3)
        proxy.faults = deque([""] * (len(proxy.seen) % 12))


def run_checkpoint_command(*arguments: str) -> Any:
    found = CliRunner().invoke(app, ["checkpoint", *arguments, "--json"], catch_exceptions=False)
    return json.loads(found.stdout)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = importlib.import_module("fsspec.registry")
    monkeypatch.delitem(known._registry, "s3", raising=False)  # an earlier test may have imported it
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(EnvironmentMismatch, match="s3fs") as caught:
        open_store("s3://bucket/run")
    assert caught.value.hint == 'pip install "ziggurat[s3]"'


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("checkpoints", "relative to the working directory"),
        (" ", "names no place"),
        ("s3:///prefix", "names no bucket"),
        ("s3//bucket", "relative to the working directory"),
        ("s4://bucket/x", "no place is known by s4://"),
        ("memory://x", "is lost when this process ends"),
        ("s3://key:secret@bucket/x", "in the environment"),
        ("s3://bucket/x?versionId=1", "has a ?"),
        ("file://host/x", "names a host, 'host'"),
        ("simplecache::s3://bucket/x", "a chain of URLs"),
    ],
)
def test_a_config_rejects_stores_that_other_processes_could_not_open(place: str, message: str) -> None:
    with pytest.raises(ValueError, match="store") as caught:
        CheckpointsConfig(store=place)
    assert message in str(caught.value)


@pytest.mark.parametrize("place", ["/data/run", "~/run", "file:///data/run", "s3://bucket", "s3://bucket/a/b"])
def test_a_valid_store_is_kept_as_written(place: str) -> None:
    assert CheckpointsConfig(store=place).store == place


def test_open_store_rejects_a_chain_of_urls(s3: str, tmp_path: Path) -> None:
    with pytest.raises(ZigguratError, match="is a chain of URLs"):
        open_store(f"simplecache::{s3}")

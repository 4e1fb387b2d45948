"""Training with batches from ``ziggurat ingest`` gives the same weights as with the local loader."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commands import Command, ziggurat
from tests.training.conftest import config_values, write_log
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.network.tls import MAKE_CERTIFICATE
from ziggurat.network.token import MAKE_TOKEN
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.ingest import ingest

SECONDS = 120
COMMAND = [sys.executable, "-m", "ziggurat"]


@dataclass
class Serving:
    """A process of ``ziggurat ingest`` with two readers."""

    folder: Path
    process: subprocess.Popen[str]
    addresses: list[str]

    @property
    def errors(self) -> str:
        return (self.folder / "errors").read_text()


@contextlib.contextmanager
def readers(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Runs ``ziggurat ingest`` in the block, and ends it with the block."""
    with subprocess.Popen([*COMMAND, "ingest", *arguments], stdout=subprocess.PIPE, text=True, **options) as process:
        try:
            yield process
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("ingest")
    write_log(folder / "log.csv")
    (folder / "exp.yaml").write_text(json.dumps(config_values(folder)))  # JSON is YAML
    command = [*COMMAND, "ingest", "exp.yaml", "--readers", "2", "--address-file", "addresses"]
    with (folder / "errors").open("w") as errors:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    addresses = [process.stdout.readline().strip() for _ in range(2)]
    yield Serving(folder, process, addresses)
    process.kill()
    process.communicate()


def experiment(serving: Serving, **training: Any) -> Experiment:
    values = config_values(serving.folder)
    values["training"] |= training
    return parse_config(Experiment, values)


def weights(run: Path) -> dict[str, Any]:
    """Returns all tensors of a run's last checkpoint."""
    groups = CheckpointFolder(run / "checkpoints").load("last").groups
    return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


def check_equal(left: Path, right: Path) -> None:
    ours, theirs = weights(left), weights(right)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


def prepared(serving: Serving) -> Path:
    (folder,) = (serving.folder / "prepared").iterdir()
    return folder


@pytest.fixture(scope="module")
def local(serving: Serving) -> Path:
    """Returns a run that uses the local loader."""
    folder = serving.folder / "local"
    with contextlib.chdir(serving.folder):
        api.train(experiment(serving, epochs=2, weight_average=0.9), folder, prepared=prepared(serving))
    return folder


def readers_of(process: subprocess.Popen[str]) -> list[int]:
    command = ["pgrep", "-P", str(process.pid), "-f", "spawn_main"]
    return [int(child) for child in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def test_the_addresses_are_printed_and_written_to_the_file(serving: Serving) -> None:
    assert len(set(serving.addresses)) == 2
    assert all(address.startswith("grpc://127.0.0.1:") for address in serving.addresses)
    assert (serving.folder / "addresses").read_text().split() == serving.addresses


def test_the_address_file_of_running_readers_is_not_taken_from_them(serving: Serving) -> None:
    status, _, err = ziggurat("ingest", "exp.yaml", "--address-file", "addresses", folder=serving.folder)
    assert status == 1
    assert "error: --address-file addresses: holds the addresses of readers that are running" in err
    assert (serving.folder / "addresses").read_text().split() == serving.addresses


def test_training_with_readers_gives_the_same_weights(
    serving: Serving, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(serving.folder)
    remote = experiment(serving, readers=serving.addresses, epochs=2, weight_average=0.9)
    outcome = api.train(remote, serving.folder / "remote", prepared=prepared(serving))
    assert outcome.results is not None
    check_equal(serving.folder / "remote", local)


def test_a_trainer_needs_neither_logs_nor_a_prepared_dataset(
    serving: Serving, local: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = config_values(tmp_path / "no such folder")
    values["training"] |= {"readers": serving.addresses, "epochs": 2, "weight_average": 0.9}
    outcome = api.train(parse_config(Experiment, values), "run")
    check_equal(tmp_path / "run", local)
    folders = sorted(path.name for path in (tmp_path / "run" / "dataset").iterdir() if path.is_dir())
    assert folders == ["encoders", "test", "validation"]
    assert outcome.results is not None
    assert api.evaluate("run").compute() == pytest.approx(outcome.results["figures"]["test"], nan_ok=True)
    values["features"][1]["encoder"] = {"name": "hash", "rows": 100}
    with pytest.raises(ConfigError, match=r"features\.item: the readers' dataset .* was encoded by another config"):
        api.train(parse_config(Experiment, values), "other")


def test_raw_readers_with_a_runs_encoders_give_the_same_weights(
    serving: Serving, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(serving.folder)
    elsewhere = serving.folder / "elsewhere"
    elsewhere.mkdir()
    with readers("../exp.yaml", "--raw", "--prepared", str(local), "--readers", "2", cwd=elsewhere) as process:
        assert process.stdout is not None
        addresses = [process.stdout.readline().strip() for _ in range(2)]
        raw = experiment(serving, readers=addresses, epochs=2, weight_average=0.9)
        api.train(raw, serving.folder / "raw")
    assert process.returncode == 128 + signal.SIGTERM
    assert not list(elsewhere.rglob("*.arrow")), "no encoded rows on disk"
    check_equal(serving.folder / "raw", local)
    fetched, original = Dataset(serving.folder / "raw" / "dataset"), Dataset(prepared(serving))
    assert fetched.fingerprint == original.fingerprint
    assert fetched.schema == original.schema
    for split in ("validation", "test"):
        theirs, ours = original.split(split), fetched.split(split)
        assert ours.blocks == theirs.blocks
        assert all(ours.read(block).equals(theirs.read(block)) for block in range(len(theirs.blocks)))
    assert api.evaluate(serving.folder / "raw").compute() == api.evaluate(local).compute()


def test_readers_with_a_token_and_tls_give_the_same_weights(
    serving: Serving, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(serving.folder)
    for command in (MAKE_TOKEN, MAKE_CERTIFICATE.replace("DNS:$(hostname)", "IP:127.0.0.1")):
        subprocess.run(command, shell=True, check=True, capture_output=True)
    secured = ("--token-file", "reader.token", "--tls-cert", "server.crt", "--tls-key", "server.key")
    with readers("exp.yaml", *secured, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address.startswith("grpc+tls://127.0.0.1:")
        secure = {"readers": [address], "epochs": 2, "weight_average": 0.9, "reader_authorities": "server.crt"}
        with pytest.raises(DataError, match=rf"reader {re.escape(address)}: refuses this trainer"):
            api.train(experiment(serving, **secure), "no token")
        api.train(experiment(serving, **secure, reader_token_file="reader.token"), "secure")
        process.send_signal(signal.SIGTERM)
        errors = process.communicate()[1]
    assert "refused 127.0.0.1:" in errors
    assert "the token is missing or wrong" in errors
    check_equal(serving.folder / "secure", local)


def test_readers_for_other_machines_need_a_token_and_tls(serving: Serving) -> None:
    with pytest.raises(
        ConfigError, match=r"--host 0\.0\.0\.0: other machines can reach this address, which needs a token"
    ):
        ingest(experiment(serving), host="0.0.0.0")


def test_a_killed_reader_is_restarted_and_ctrl_c_saves(serving: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trains with one reader, which is killed meanwhile, until Ctrl-C; then resumes with the local loader."""
    monkeypatch.chdir(serving.folder)
    settings = ["--set", "training.epochs=10000", "--set", "training.evaluate_every=1000000"]
    journal = serving.folder / "stopped" / "metrics.jsonl"
    training = Command("train", "exp.yaml", "--run", "stopped", *settings, "--readers", serving.addresses[0])
    wait_until(lambda: journal.is_file() and journal.read_text().count("\n") > 3)
    for child in readers_of(serving.process):
        os.kill(child, signal.SIGKILL)
    wait_until(lambda: serving.errors.count("was ended by SIGKILL; starting it again") == 2)
    lines = journal.read_text().count("\n")
    wait_until(lambda: journal.read_text().count("\n") > lines + 3)  # training continues
    training.send_signal(signal.SIGINT)
    _, errors = training.communicate(timeout=SECONDS)
    assert training.returncode == 128 + signal.SIGINT
    assert f"reader {serving.addresses[0]}: lost" in errors
    assert f"reader {serving.addresses[0]}: back" in errors
    (step,) = (int(path.name.removeprefix("step-")) for path in (serving.folder / "stopped/checkpoints").glob("step-*"))
    for name in ("stopped", "straight"):
        local = experiment(serving, epochs=10_000, evaluate_every=1_000_000)
        api.train(local, serving.folder / name, prepared=prepared(serving), stop_after=step + 20)
    check_equal(serving.folder / "stopped", serving.folder / "straight")


def test_the_error_names_a_port_in_use(serving: Serving) -> None:
    port = serving.addresses[1].rpartition(":")[2]
    status, _, err = ziggurat("ingest", "exp.yaml", "--port", port, folder=serving.folder)
    assert status == 1
    assert f"error: 127.0.0.1:{port}: cannot be listened on (Address already in use)" in err
    assert "hint:  choose another --port; 0 takes a free one" in err


def test_ctrl_c_ends_the_readers(serving: Serving) -> None:
    children = readers_of(serving.process)
    assert len(children) == 2
    serving.process.send_signal(signal.SIGINT)
    assert serving.process.wait(SECONDS) == 128 + signal.SIGINT
    assert not (serving.folder / "addresses").exists()
    assert "Traceback" not in serving.errors
    assert not any(is_alive(child) for child in children)


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not true within {SECONDS} seconds"
        time.sleep(0.1)

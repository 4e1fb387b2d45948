"""``ziggurat train`` under the tower transform when a rank of another host dies or hangs.

Two processes act as hosts of one rank each, as a scheduler would start them.
docs/distributed.md promises the messages.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.commands import SECONDS, Command
from tests.distributed.launched import ended
from tests.training.conftest import config_values, write_log
from ziggurat.training.run_folder.metrics_log import read_metrics_log

TOWERS = {
    "partition": {"name": "given", "towers": [["tags", "user"], ["item", "history"]]},
    "module": {"name": "dlrm", "flat": 2, "each": 0, "width": 4},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tower_faults")
    write_log(path / "log.csv")
    values = config_values(path)
    values["towers"], values["model"] = TOWERS, {"name": "dlrm", "top": {"hidden": [16]}}
    values["parallel"] = {"embeddings": {"name": "tower_transform"}, "timeout_s": 8}
    values["training"].update(device="cpu", log_every=1, epochs=400, save_every=10)
    with (path / "exp.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(values, file)
    return path


def hosts(folder: Path, name: str, *arguments: str) -> list[Command]:
    """Starts a rank on each of two hosts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    at = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return [
        Command(
            *("train", "exp.yaml", "--run", f"runs/{name}", *arguments),
            folder=folder,
            environment={**os.environ, **world, **at, "RANK": str(rank)},
        )
        for rank in range(2)
    ]


def wait_for(step: int, journal: Path, process: Command) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        records = read_metrics_log(journal)
        if records and records[-1]["step"] >= step:
            return
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("training did not get that far")


def killed(rank: Command) -> None:
    os.kill(rank.pid, signal.SIGKILL)


def stopped(rank: Command) -> None:
    os.kill(rank.pid, signal.SIGSTOP)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (killed, r"rank 0: lost the connection to another rank at step \d+"),
        (stopped, r"rank 0: waited 8 s for the other ranks at step \d+: rank 1 sent its last heartbeat \d+ s ago"),
    ],
)
def test_the_other_host_ends_and_says_what_it_misses(
    folder: Path, fault: Callable[[Command], None], message: str
) -> None:
    name = getattr(fault, "__name__", "")
    first, second = hosts(folder, name)
    try:
        wait_for(5, folder / "runs" / name / "metrics.jsonl", first)
        fault(second)
        started = time.monotonic()
        status, _, err = ended(first)
    finally:
        second.kill()
    assert status == 1
    assert re.search(message, err), err
    assert time.monotonic() - started < 60

"""``ziggurat train --nproc 2`` as a user starts it, and what becomes of it when a rank does not go on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from ruamel.yaml import YAML

from tests.memory_cgroup import limited, unavailable
from tests.training.conftest import config_values, write_log
from ziggurat.training.journal import read_journal

SECONDS = 240


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("launch")
    write_log(path / "log.csv")
    values = config_values(path)
    values["training"].update(device="cpu", log_every=1)
    with (path / "exp.yaml").open("w", encoding="utf-8") as file:
        YAML().dump(values, file)
    return path


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ziggurat", "train", "exp.yaml", *arguments]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr."""
    return ended(start(folder, *arguments))


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
    return process.returncode, out, err


def rank_at(process: subprocess.Popen[str], rank: int, journal: Path, step: int) -> psutil.Process:
    """The process of a rank, once training has come to ``step``."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        records = read_journal(journal)
        if records and records[-1]["step"] >= step:
            children = psutil.Process(process.pid).children()
            return next(child for child in children if child.environ()["RANK"] == str(rank))
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("training did not get that far")


def figures(folder: Path, name: str) -> dict[str, float]:
    return json.loads((folder / "runs" / name / "results.json").read_text(encoding="utf-8"))["figures"]["test"]


def test_two_ranks_come_to_the_figures_of_one(folder: Path) -> None:
    assert run(folder, "--run", "runs/one")[0] == 0
    status, out, err = run(folder, "--run", "runs/two", "--nproc", "2")
    assert status == 0, err
    assert out.count("log_loss") == 1, out  # told once, not by each rank
    assert figures(folder, "two")["auc"] == pytest.approx(figures(folder, "one")["auc"], abs=1e-3)
    plan = json.loads((folder / "runs" / "two" / "plan.json").read_text(encoding="utf-8"))
    assert plan["world_size"] == 2


LONG = ("--set", "training.epochs=400", "--set", "training.save_every=10", "--nproc", "2")


def test_a_killed_rank_is_named(folder: Path) -> None:
    process = start(folder, "--run", "runs/killed", *LONG)
    rank_at(process, 1, folder / "runs/killed/metrics.jsonl", 5).send_signal(signal.SIGKILL)
    status, _, err = ended(process)
    assert status == 1
    assert "error: rank 1 of 2: was killed (SIGKILL)" in err
    assert "Traceback" not in err


@pytest.mark.skipif(unavailable() is not None, reason=f"no limit of memory here: {unavailable()}")
def test_a_rank_that_the_kernel_ends_for_want_of_memory_is_named(folder: Path) -> None:
    with limited(400 << 20) as group:  # a rank needs about as much by itself
        command = ["sh", "-c", f'echo $$ > {group}/cgroup.procs; exec "$@"', "sh"]
        train = [sys.executable, "-m", "ziggurat", "train", "exp.yaml", "--run", "runs/memory", "--nproc", "2"]
        process = subprocess.Popen(
            [*command, *train], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        status, _, err = ended(process)
    assert status == 1, err
    assert re.search(r"error: rank [01] of 2: was killed \(SIGKILL\): most often the machine ran out of memory", err)


def test_a_port_that_another_program_has_is_named(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        world = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        environment = {**os.environ, **world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, "-m", "ziggurat", "train", "exp.yaml", "--run", "runs/port"]
        done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert f"rank 0 of 2: the ranks did not meet at 127.0.0.1:{port}" in done.stderr
    assert "is the port free" in done.stderr


def torchrun(folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, *arguments, "-m", "--", "ziggurat", "train", "exp.yaml", "--run", f"runs/{name}"]
    command += ["--set", "training.save_every=5"]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_torchrun_starts_ranks_and_starts_them_again(folder: Path) -> None:
    process = torchrun(folder, "torchrun", "--max-restarts", "1")
    rank_at(process, 1, folder / "runs/torchrun/metrics.jsonl", 12).send_signal(signal.SIGKILL)
    status, _, err = ended(process)
    assert status == 0, err
    assert "going on at step 1" in err
    assert figures(folder, "torchrun")["auc"] == pytest.approx(figures(folder, "one")["auc"], abs=1e-3)


def test_after_a_killed_rank_training_goes_on_where_it_was_saved(folder: Path) -> None:
    process = start(
        folder, "--run", "runs/restarted", "--set", "training.save_every=5", "--nproc", "2", "--restarts", "1"
    )
    rank_at(process, 0, folder / "runs/restarted/metrics.jsonl", 12).send_signal(signal.SIGKILL)
    status, _, err = ended(process)
    assert status == 0, err
    assert "starting all ranks again (0 restarts left)" in err
    assert "going on at step 1" in err
    assert figures(folder, "restarted")["auc"] == pytest.approx(figures(folder, "one")["auc"], abs=1e-3)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_saves_on_all_ranks_and_the_command_goes_on(folder: Path, number: signal.Signals) -> None:
    name = f"stopped-{number.name}"
    process = start(folder, "--run", f"runs/{name}", *LONG)
    rank_at(process, 0, folder / f"runs/{name}/metrics.jsonl", 5)
    os.kill(process.pid, number)
    status, _, err = ended(process)
    assert status == 128 + number, err
    assert err.count(f"stopped by {number.name}; saved at step") == 1
    saved = int(err.split("saved at step ")[1].split(".")[0])
    status, _, err = run(folder, "--run", f"runs/{name}", *LONG, "--stop-after", str(saved + 3))
    assert status == 0, err
    assert f"going on at step {saved:,}" in err


def test_a_rank_that_hangs_is_named_within_the_timeout(folder: Path) -> None:
    process = start(folder, "--run", "runs/hung", *LONG, "--set", "parallel.timeout_s=8")
    hung = rank_at(process, 1, folder / "runs/hung/metrics.jsonl", 5)
    hung.send_signal(signal.SIGSTOP)
    started = time.monotonic()
    status, _, err = ended(process)
    assert status == 1
    assert "waited 8 s for the other ranks at step" in err
    assert "rank 1 was last heard of" in err
    assert time.monotonic() - started < 60


def test_a_batch_too_small_for_the_ranks_is_refused_once(folder: Path) -> None:
    status, _, err = run(folder, "--run", "runs/small", "--nproc", "3", "--set", "training.batch_size=2")
    assert status == 1
    assert err.count("batch_size=2: a batch is shared by 3 ranks") == 1


def test_half_a_description_of_the_world_is_refused(folder: Path) -> None:
    command = [sys.executable, "-m", "ziggurat", "train", "exp.yaml", "--run", "runs/half"]
    environment = {**os.environ, "WORLD_SIZE": "2"}
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, check=False)
    assert done.returncode == 1
    assert "WORLD_SIZE=2, but RANK and LOCAL_WORLD_SIZE not set" in done.stderr

"""``ziggurat train --nproc 2`` and torchrun, and resuming after a crash or Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.commands import SECONDS
from tests.distributed.launched import LONG, ended, figures, rank_at, ranks_of, run, start
from ziggurat.report.gather import report_run
from ziggurat.training.run_folder.run import open_run


@pytest.fixture(scope="module")
def alone(folder: Path) -> dict[str, float]:
    """Returns the metrics of a single process."""
    status, _, err = run(folder, "--run", "runs/one")
    assert status == 0, err
    return figures(folder, "one")


def test_two_ranks_equal_one_process(folder: Path, alone: dict[str, float]) -> None:
    apart = ("--set", "planning.tables.item.sharding=row_wise")
    status, out, err = run(folder, "--run", "runs/two", "--nproc", "2", *apart)
    assert status == 0, err
    assert out.count("log_loss") == 1, out  # printed once, not by each rank
    assert figures(folder, "two")["auc"] == pytest.approx(alone["auc"], abs=1e-3)
    plan = json.loads((folder / "runs" / "two" / "plan.json").read_text(encoding="utf-8"))
    assert plan["world_size"] == 2


def test_the_report_says_what_each_rank_held(folder: Path, alone: dict[str, float]) -> None:
    """Uses the runs of the tests above."""
    whole, apart = (
        report_run(folder / "runs" / name, baselines=False).read_text(encoding="utf-8") for name in ("one", "two")
    )
    assert "trained on 2 ranks" in apart
    assert "row-wise, every rank" in apart
    assert "rank 1</td>" in apart
    assert "as in the config, 2 ranks" in apart
    assert "The model was trained on" not in whole


def torchrun(folder: Path, name: str, *arguments: str) -> subprocess.Popen[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    command = [*launcher, *arguments, "-m", "--", "ziggurat", "train", "exp.yaml", "--run", f"runs/{name}"]
    command += ["--set", "training.save_every=5"]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_torchrun_starts_and_restarts_ranks(folder: Path, alone: dict[str, float]) -> None:
    process = torchrun(folder, "torchrun", "--max-restarts", "1")
    rank_at(process, 1, folder / "runs/torchrun/metrics.jsonl", 12).send_signal(signal.SIGKILL)
    status, _, err = ended(process)
    assert status == 0, err
    found = re.search(r"resuming at step (\d+) of", err)
    assert found is not None, err
    assert int(found[1]) >= 5  # the next checkpoint may not have been written yet
    assert figures(folder, "torchrun")["auc"] == pytest.approx(alone["auc"], abs=1e-3)


def test_torchrun_joins_the_ranks_of_two_hosts(folder: Path, port: int, alone: dict[str, float]) -> None:
    """Two torchrun agents stand for two hosts."""
    address = ("--master-addr", "127.0.0.1", "--master-port", str(port))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1", *address]
    train = ["-m", "--", "ziggurat", "train", "exp.yaml", "--run", "runs/hosts"]
    pipe = subprocess.PIPE
    hosts = [
        subprocess.Popen([*launcher, "--node-rank", host, *train], cwd=folder, text=True, stdout=pipe, stderr=pipe)
        for host in ("0", "1")
    ]
    for status, _, err in map(ended, hosts):
        assert status == 0, err
    assert figures(folder, "hosts")["auc"] == pytest.approx(alone["auc"], abs=1e-3)
    plan = json.loads((folder / "runs" / "hosts" / "plan.json").read_text(encoding="utf-8"))
    assert (plan["world_size"], plan["local_size"]) == (2, 1)


def test_after_a_killed_rank_training_resumes_from_the_checkpoint(folder: Path, alone: dict[str, float]) -> None:
    process = start(
        folder, "--run", "runs/restarted", "--set", "training.save_every=5", "--nproc", "2", "--restarts", "1"
    )
    rank_at(process, 0, folder / "runs/restarted/metrics.jsonl", 12).send_signal(signal.SIGKILL)
    status, _, err = ended(process)
    assert status == 0, err
    assert "starting all ranks again (0 restarts left)" in err
    found = re.search(r"resuming at step (\d+) of", err)
    assert found is not None, err
    assert int(found[1]) >= 5  # the next checkpoint may not have been written yet
    assert figures(folder, "restarted")["auc"] == pytest.approx(alone["auc"], abs=1e-3)


def saved_step(folder: Path, name: str) -> int:
    """Returns the step of a run's last checkpoint."""
    step = open_run(folder / "runs" / name).checkpoints.last()
    assert step is not None
    return step


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
    assert saved_step(folder, name) == saved
    status, _, err = run(folder, "--run", f"runs/{name}", *LONG, "--stop-after", str(saved + 3))
    assert status == 0, err
    assert f"resuming at step {saved:,}" in err


def check_resumes(folder: Path, name: str) -> None:
    """Asserts that the run was saved after its fifth step, and resumes there."""
    saved = saved_step(folder, name)
    assert saved >= 5
    _, out, err = run(folder, "--run", f"runs/{name}", *LONG, "--stop-after", str(saved + 1))
    assert "stopped after step" in out, err
    assert f"resuming at step {saved:,}" in err


def test_sigterm_to_any_rank_stops_all_of_them_saved(folder: Path) -> None:
    process = start(folder, "--run", "runs/one-told", *LONG)
    rank_at(process, 1, folder / "runs/one-told/metrics.jsonl", 5).send_signal(signal.SIGTERM)
    status, out, err = ended(process)
    assert status == 128 + signal.SIGTERM, err
    assert "error" not in err
    assert "because another rank received a signal; saved" in out
    check_resumes(folder, "one-told")


def test_a_second_ctrl_c_ends_all_ranks_without_saving(folder: Path) -> None:
    process = start(folder, "--run", "runs/twice", *LONG)
    rank = rank_at(process, 0, folder / "runs/twice/metrics.jsonl", 5)
    rank.send_signal(signal.SIGSTOP)  # so that it handles the first signal only after the second
    for _ in range(2):
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
    status, _, err = ended(process)
    assert status == 128 + signal.SIGINT, err
    assert "error" not in err
    assert not rank.is_running()


def test_ranks_whose_launcher_is_killed_stop_and_save(folder: Path) -> None:
    process = start(folder, "--run", "runs/orphans", *LONG)
    rank_at(process, 0, folder / "runs/orphans/metrics.jsonl", 5)
    ranks = ranks_of(process)
    assert len(ranks) == 2
    process.kill()
    _, alive = psutil.wait_procs(ranks, SECONDS)
    assert not alive
    process.communicate()
    check_resumes(folder, "orphans")

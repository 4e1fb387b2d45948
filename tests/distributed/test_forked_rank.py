"""Ranks that are forks of their launcher."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ziggurat.core.temporary import temporary_folder
from ziggurat.parallel.forked_rank import can_fork

pytestmark = pytest.mark.skipif(not can_fork(), reason="ranks are forks on Linux with an engine for the CPU only")

LAUNCH = """
import os, signal, sys, time
from pathlib import Path
from ziggurat.parallel.launch import launch, stop_with_launcher
where, ranks = Path(sys.argv[1]), 2
def stop(number, frame):
    raise SystemExit(128 + number)
signal.signal(signal.SIGTERM, stop)
status = launch(["false"], ranks)
if status is not None:
    sys.exit(status)
stop_with_launcher()
imported = "torchrec" in sys.modules
import torch
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS")
said = [os.environ[name] for name in names]
line = [*said, imported, torch.get_num_threads(), os.getsid(0) == os.getpid(), os.getppid()]
(where / f"{os.environ['RANK']}.part").write_text(repr(line))
(where / f"{os.environ['RANK']}.part").rename(where / os.environ["RANK"])
if sys.argv[2:] == ["wait"]:
    time.sleep(600)
if sys.argv[2:] == ["fail"]:
    os.kill(os.getpid(), signal.SIGSEGV) if os.environ["RANK"] == "1" else time.sleep(600)
"""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "3"}
    command = [sys.executable, "-c", LAUNCH, str(folder), *arguments]
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)


def wait_for_ranks(folder: Path) -> None:
    deadline = time.monotonic() + 240
    while not all((folder / rank).exists() for rank in "01"):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_fork_is_described_by_its_environment_and_has_the_engine(tmp_path: Path) -> None:
    launcher = start(tmp_path)
    _, errors = launcher.communicate(timeout=240)
    assert launcher.returncode == 0, errors
    for rank in "01":
        expected = [rank, rank, "2", "2", "3", True, 3, True, launcher.pid]
        assert (tmp_path / rank).read_text() == repr(expected)


def test_a_signal_reaches_each_fork_once_through_the_launcher(tmp_path: Path) -> None:
    launcher = start(tmp_path, "wait")
    wait_for_ranks(tmp_path)
    launcher.send_signal(signal.SIGTERM)
    _, errors = launcher.communicate(timeout=240)
    assert launcher.returncode == 128 + signal.SIGTERM, errors


def test_forks_notice_that_the_launcher_is_killed(tmp_path: Path) -> None:
    launcher = start(tmp_path, "wait")
    wait_for_ranks(tmp_path)
    launcher.kill()
    launcher.communicate(timeout=240)  # ends when the last process that holds the pipe has ended


def test_a_fork_that_dies_is_named_and_the_others_are_ended(tmp_path: Path) -> None:
    launcher = start(tmp_path, "fail")
    _, errors = launcher.communicate(timeout=240)
    assert launcher.returncode == 1
    assert "RankFailed: rank 1 of 2: was ended by SIGSEGV" in errors


def test_a_fork_leaves_a_temporary_folder_to_its_owner(tmp_path: Path) -> None:
    with temporary_folder("ours-", tmp_path) as folder:
        context = temporary_folder("theirs-", tmp_path)
        entered = context.__enter__()
        child = os.fork()
        if child == 0:
            context.__exit__(None, None, None)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert entered.path.is_dir()
        context.__exit__(None, None, None)
        assert not entered.path.exists()
        assert folder.path.is_dir()

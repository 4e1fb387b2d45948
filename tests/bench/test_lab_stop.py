"""The lab's command line: stopping it by a signal, options of the command that it runs, and invalid numbers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from torch.distributed.run import parse_args

from bench.lab.__main__ import main
from bench.lab.cluster import Cluster, Shape, unavailable
from bench.lab.launch import launch, separated

_PROBLEM = unavailable()
needs_cluster = pytest.mark.skipif(_PROBLEM is not None, reason=f"no cluster of network namespaces here: {_PROBLEM}")

ROOT = Path(__file__).parents[2]

# Ranks share a pipe, and Python writes unbuffered, so a line is a single write only if the newline is part of it.
SLEEP = """
import os, signal, time
def stop(number, frame):
    print("saved\\n", end="", flush=True)
    raise SystemExit(0)
signal.signal(signal.SIGTERM, stop)
print(f"process {os.getpid()}\\n", end="", flush=True)
time.sleep(600)
"""

STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(f"process {os.getpid()}\\n", end="", flush=True)
time.sleep(600)
"""


def lab(*arguments: str) -> subprocess.Popen[str]:
    """Starts the command in its own session, as a terminal does."""
    command = [sys.executable, "-m", "bench.lab", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def hosts_of(process: int) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if line.startswith(f"zig{process}") and "probe" not in line]


def running(process: int) -> bool:
    """Returns whether a process runs; zombies do not count."""
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@needs_cluster
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_ranks_and_removes_the_hosts(tmp_path: Path, number: signal.Signals, status: int) -> None:
    script = tmp_path / "sleep.py"
    script.write_text(SLEEP)
    process = lab("--hosts", "2", "--", str(script))
    assert process.stdout is not None
    ranks: list[int] = []
    for line in process.stdout:
        if "] process " in line:
            ranks.append(int(line.split()[-1]))
        if len(ranks) == 2:
            break
    assert len(hosts_of(process.pid)) == 3
    assert all(running(rank) for rank in ranks)
    os.killpg(process.pid, number)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == status
    assert errors == f"stopped by {number.name}; all ranks have ended, the hosts are removed\n"
    assert {"[host 0] saved", "[host 1] saved"} <= set(out.splitlines())
    assert "Traceback" not in out
    assert not any(running(rank) for rank in ranks)
    assert hosts_of(process.pid) == []


@needs_cluster
def test_a_signal_during_the_creation_of_hosts_leaves_none(tmp_path: Path) -> None:
    script = tmp_path / "never.py"
    script.write_text("print('ran')\n")
    process = lab("--hosts", "8", "--", str(script))
    while not hosts_of(process.pid) and process.poll() is None:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "ran" not in out
    assert len(errors.splitlines()) == 1
    assert hosts_of(process.pid) == []


@needs_cluster
def test_ranks_that_ignore_sigterm_are_killed_after_torchrun_ended(tmp_path: Path) -> None:
    script = tmp_path / "stubborn.py"
    script.write_text(STUBBORN)
    said: list[str] = []

    def ranks() -> list[int]:
        return [int(line.split()[-1]) for line in said if "] process " in line]

    with Cluster(Shape(hosts=1)) as cluster:
        launch(cluster, 2, [str(script)], said.append, stopped=lambda: len(ranks()) == 2, grace=0.5)
        assert cluster.processes() == []
    assert len(ranks()) == 2, said
    assert not any(running(rank) for rank in ranks())


@needs_cluster
@pytest.mark.parametrize("written", [["-m", "tell"], ["-m", "--", "tell"], ["-m", "tell", "--"]])
def test_options_after_a_module_are_passed_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written: list[str]
) -> None:
    (tmp_path / "tell.py").write_text("import sys\nprint(sys.argv[1:])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert main(["--hosts", "1", "--", *written, "train", "x.yaml", "--run", "y"]) == 0
    assert "[host 0] ['train', 'x.yaml', '--run', 'y']\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        (["s.py", "--run", "y"], ["--", "s.py", "--run", "y"]),
        (["--no-python", "ls", "--run"], ["--no-python", "--", "ls", "--run"]),
        (["-m", "z", "a", "--", "--run"], ["-m", "--", "z", "a", "--", "--run"]),
        (["--max-restarts", "1", "-m", "--", "z", "--run"], ["--max-restarts", "1", "-m", "--", "z", "--run"]),
    ],
)
def test_torchrun_parses_a_separated_command_as_intended(command: Sequence[str], sent: list[str]) -> None:
    assert separated(command) == sent
    read = parse_args(sent)
    script = next(place for place, part in enumerate(command) if part in ("s.py", "ls", "z"))
    assert [read.training_script, *read.training_script_args] == list(command[script:])


@pytest.mark.parametrize(
    ("option", "value", "allowed"),
    [
        ("--hosts", "0", "hosts are a whole number from 1 to 254"),
        ("--hosts", "-1", "hosts are a whole number from 1 to 254"),
        ("--hosts", "255", "hosts are a whole number from 1 to 254"),
        ("--ranks", "0", "processes per host are a whole number from 1"),
        ("--ranks", "two", "processes per host are a whole number from 1"),
    ],
)
def test_invalid_numbers_of_hosts_and_ranks_are_rejected(
    capsys: pytest.CaptureFixture[str], option: str, value: str, allowed: str
) -> None:
    with pytest.raises(SystemExit) as refused:
        main([option, value, "--", "never.py"])
    assert refused.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"argument {option}: received {value!r}; {allowed}")

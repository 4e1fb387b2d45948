"""Starts `ziggurat train` in processes, for tests."""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path

import psutil

from tests.commands import SECONDS, Command
from ziggurat.training.run_folder.metrics_log import read_metrics_log

LONG = ("--set", "training.epochs=400", "--set", "training.save_every=10", "--nproc", "2")
"""Options of a two-rank training long enough to be interrupted by a test."""


def start(folder: Path, *arguments: str) -> Command:
    """Starts ``ziggurat train exp.yaml``."""
    return Command("train", "exp.yaml", *arguments, folder=folder)


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Runs to the end; returns exit status, stdout and stderr."""
    return ended(start(folder, *arguments))


def ended(process: Command | subprocess.Popen[str]) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=SECONDS)
    finally:
        for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            child.kill()
        process.kill()
    assert process.returncode is not None
    return process.returncode, out, err


def ranks_of(process: Command | subprocess.Popen[str]) -> list[psutil.Process]:
    """Returns the processes of the ranks: they are started in this order."""
    return sorted(psutil.Process(process.pid).children(), key=lambda child: (child.create_time(), child.pid))


def rank_at(process: Command | subprocess.Popen[str], rank: int, journal: Path, step: int) -> psutil.Process:
    """Waits until training reaches ``step`` and returns the process of a rank."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        records = read_metrics_log(journal)
        if records and records[-1]["step"] >= step:
            return ranks_of(process)[rank]
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("training did not get that far")


def figures(folder: Path, name: str) -> dict[str, float]:
    return json.loads((folder / "runs" / name / "results.json").read_text(encoding="utf-8"))["figures"]["test"]

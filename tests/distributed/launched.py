"""Starts `ziggurat train` in processes, for tests."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ziggurat.training.run_folder.metrics_log import read_metrics_log

SECONDS = 240

LONG = ("--set", "training.epochs=400", "--set", "training.save_every=10", "--nproc", "2")
"""Options of a two-rank training long enough to be interrupted by a test."""


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ziggurat", "train", "exp.yaml", *arguments]
    return subprocess.Popen(command, cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run(folder: Path, *arguments: str) -> tuple[int, str, str]:
    """Runs to the end; returns exit status, stdout and stderr."""
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
    """Waits until training reaches ``step`` and returns the process of a rank."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        records = read_metrics_log(journal)
        if records and records[-1]["step"] >= step:
            children = psutil.Process(process.pid).children()
            return next(child for child in children if child.environ()["RANK"] == str(rank))
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    raise AssertionError("training did not get that far")


def figures(folder: Path, name: str) -> dict[str, float]:
    return json.loads((folder / "runs" / name / "results.json").read_text(encoding="utf-8"))["figures"]["test"]

"""All contestants of tiered_training train the same model bit for bit; they differ only in resources."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench.contestant import ROOT
from bench.system.tiered_contestants import QUICK

MEMORY = 4 * QUICK.tables * QUICK.rows * (QUICK.dim + 1) / 4


def answered(kind: str, folder: Path) -> list[Mapping[str, float]]:
    """Returns a contestant's answers for 30 steps and for 10 more."""
    command = [sys.executable, "-m", "bench.system.tiered_contestants", kind, str(folder), "1.05", str(MEMORY), "quick"]
    done = subprocess.run(command, input="30 100\n10 100\n", capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if "loss" in line]


@pytest.fixture(scope="module")
def memory(tmp_path_factory: pytest.TempPathFactory) -> list[Mapping[str, float]]:
    return answered("memory", tmp_path_factory.mktemp("memory"))


@pytest.mark.parametrize("kind", ["look_ahead", "no_look_ahead", "lru", "rocksdb", "paging", "nand", "3dxp"])
def test_a_contestant_computes_the_same_as_with_all_rows_in_memory(
    kind: str, memory: list[Mapping[str, float]], tmp_path: Path
) -> None:
    found = answered(kind, tmp_path)
    assert [each["loss"] for each in found] == [each["loss"] for each in memory]
    assert [each["steps"] for each in found] == [30, 10]
    if kind != "paging":
        assert found[1]["missed"] > 0

"""The training tasks of the throughput benchmark, and that every contestant learns from them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from bench import workloads
from bench.contestant import ROOT, Contestant
from bench.peers.workload import HELD_OUT, LABEL, Workload, columns
from bench.system.throughput import PEERS, PEERS_PYTHON
from ziggurat.core.errors import DataError


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workload") / "tables"
    workloads.tables(folder, quick=True)
    return folder


def test_a_workload_reads_back_as_written(small: Path) -> None:
    workload, data = Workload.read(small), columns(small)
    assert list(data) == [*workload.tables, LABEL]
    assert len(workload.tables) == 26
    for name, rows in workload.tables.items():
        assert 0 <= data[name].min() <= data[name].max() < rows
    assert set(np.unique(data[LABEL])) == {0.0, 1.0}
    assert 0.4 < data[LABEL].mean() < 0.6


def test_generated_ids_follow_zipf_and_are_the_same_every_time() -> None:
    shape = {"a": 1000, "b": 10}
    first, again = (workloads.generate(shape, 200_000, seed=5) for _ in range(2))
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    counts = np.sort(np.bincount(first["a"], minlength=1000))[::-1]
    expected = np.arange(1, 1001) ** -workloads.ZIPF_EXPONENT
    expected *= 200_000 / expected.sum()
    np.testing.assert_allclose(counts[:20], expected[:20], rtol=0.06)


def test_frappe_from_a_folder_becomes_local_ids(tmp_path: Path) -> None:
    cells: dict[str, list[int]] = {LABEL: [1, 0]}
    start = 0
    for name, rows in workloads.FRAPPE_TABLES.items():
        cells[name] = [start, start + rows - 1]  # the column's first and last id in Frappe's shared id space
        start += rows
    pl.DataFrame(cells).write_parquet(tmp_path / "train.parquet")
    pl.DataFrame(cells).head(1).write_parquet(tmp_path / "test.parquet")

    workload = workloads.frappe(tmp_path / "out", tmp_path, quick=False)
    data = columns(tmp_path / "out")
    for name, rows in workloads.FRAPPE_TABLES.items():
        np.testing.assert_array_equal(data[name], [0, rows - 1])
    assert len(columns(tmp_path / "out", HELD_OUT)[LABEL]) == 1
    assert sum(workload.tables.values()) == 5382
    assert workload.source == "Frappe, 2 training rows"


def test_frappe_from_a_wrong_folder_is_rejected_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"train\.parquet: missing"):
        workloads.frappe(tmp_path / "out", tmp_path, quick=True)
    pl.DataFrame({LABEL: [1]}).write_parquet(tmp_path / "train.parquet")
    with pytest.raises(DataError, match="lacks user, item"):
        workloads.frappe(tmp_path / "out", tmp_path, quick=True)
    wrong = {LABEL: [1], **{name: [10_000] for name in workloads.FRAPPE_TABLES}}
    pl.DataFrame(wrong).write_parquet(tmp_path / "train.parquet")
    with pytest.raises(DataError, match="column 'user' holds ids outside Frappe's"):
        workloads.frappe(tmp_path / "out", tmp_path, quick=True)


def test_without_data_the_source_says_that_rows_are_generated(tmp_path: Path) -> None:
    assert "generated stand-in" in workloads.frappe(tmp_path / "out", None, quick=True).source


@pytest.mark.parametrize("module", ["bench.system.handwritten", "bench.system.ours", *PEERS.values()])
def test_every_contestant_learns(module: str, small: Path, tmp_path: Path) -> None:
    python = PEERS_PYTHON if module in PEERS.values() else Path(sys.executable)
    if not python.exists():
        pytest.skip("the peers are not installed (python3.11 bench/peers/install.py)")
    folder = shutil.copytree(small, tmp_path / "workload")
    with Contestant(module, [python, "-m", module, folder]).start() as contestant:
        rates = [contestant.epoch() for _ in range(3)]
    assert min(rates) > 0
    assert contestant.losses[-1] < contestant.losses[0]


def test_ours_and_the_loop_are_compared_on_rows_held_out(tmp_path: Path) -> None:
    folder = tmp_path / "frappe"
    workloads.frappe(folder, None, quick=True)
    command = [sys.executable, "-m", "bench.system.equal_auc", str(folder), "3", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"ziggurat", "handwritten"}
    assert all(0.52 < auc < 0.9 for auc in found.values()), found

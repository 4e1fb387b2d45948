"""The benchmark of memory and disks, and the command that prints it."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.small_disk import small_disk
from ziggurat.cli.main import app
from ziggurat.core.errors import DataError
from ziggurat.storage import tier_benchmark
from ziggurat.storage.native import NativeUnavailable
from ziggurat.storage.tier_benchmark import disk_tiers, memory_tier


@pytest.fixture(autouse=True)
def small_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_benchmark, "MAX_FILE_BYTES", tier_benchmark.MIN_FILE_BYTES)
    monkeypatch.setattr(tier_benchmark, "TABLE_BYTES", 2**22)


def test_figures_are_plausible_and_no_file_remains(tmp_path: Path) -> None:
    memory = memory_tier(0.02)
    assert math.isnan(memory.read_s)
    found = disk_tiers(tmp_path, 0.05)
    assert [tier.block for tier in found][-2:] == [1024, 4096]
    for tier in found:
        assert tier.name == f"disk of {tmp_path}"
        assert 0 < tier.reads < 1e8
        assert 0 < tier.read_s < 1
        assert tier.processor_s > 0
        assert tier.written > 0
    assert list(tmp_path.iterdir()) == []


def test_a_disk_without_enough_space_is_rejected(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 512) as folder, pytest.raises(DataError, match=r"small: .* too few to measure"):
        disk_tiers(folder)


def test_doctor_prints_the_tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def unavailable(*_: object) -> None:
        raise NativeUnavailable("no C compiler is installed")

    monkeypatch.setattr("ziggurat.storage.async_io.Ring", unavailable)
    result = CliRunner().invoke(app, ["doctor", "--tiers", "--folder", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert f"disk of {tmp_path}" in result.output
    assert "rows/s" in result.output
    assert "the disk is read by threads: no C compiler is installed" in result.output
    assert "missing rows per second from this disk" in result.output


def test_doctor_runs_one_measurement_at_a_time() -> None:
    result = CliRunner().invoke(app, ["doctor", "--tiers", "--measure"])
    assert result.exit_code == 1
    assert "cannot be combined" in str(result.exception)

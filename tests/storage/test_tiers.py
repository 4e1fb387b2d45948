"""What memory and a disk give: figures of real reads, and what is said where there are none."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.small_disk import small_disk
from ziggurat.cli.main import app
from ziggurat.core.errors import DataError
from ziggurat.storage import tier_benchmark as tiers
from ziggurat.storage.native import NativeUnavailable
from ziggurat.storage.tier_benchmark import disk_tiers, memory_tier


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "FILE", tiers.LEAST_FILE)
    monkeypatch.setattr(tiers, "TABLE", 2**22)


def test_figures_are_of_real_work(tmp_path: Path) -> None:
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


def test_a_disk_without_room_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", 512) as folder, pytest.raises(DataError, match=r"small: .* too few to measure"):
        disk_tiers(folder)


def test_the_command_tells_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")

    def none(*_: object) -> None:
        raise NativeUnavailable("no C compiler is installed")

    monkeypatch.setattr("ziggurat.storage.async_io.Ring", none)
    said = CliRunner().invoke(app, ["doctor", "--tiers", "--folder", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert f"disk of {tmp_path}" in said.output
    assert "rows/s" in said.output
    assert "the disk is read by threads: no C compiler is installed" in said.output
    assert "missing rows a second from here at most" in said.output


def test_one_measurement_at_a_time() -> None:
    said = CliRunner().invoke(app, ["doctor", "--tiers", "--measure"])
    assert said.exit_code == 1
    assert "one at a time" in str(said.exception)

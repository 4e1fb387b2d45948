"""What the options about the drive say is the budget of a server that follows a training."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.serving.http_kit import running
from tests.serving.versions_kit import STEPS, trained, until
from ziggurat.serving.http.serve import _budget  # pyright: ignore[reportPrivateUsage]
from ziggurat.serving.versions import endurance


def test_a_server_keeps_to_the_options(tmp_path: Path) -> None:
    run, place, export = trained(), tmp_path / "checkpoints", tmp_path / "export"
    shutil.copytree(run.export(STEPS[0]), export)
    run.put(STEPS[0], place)
    options = ("--follow", str(place), "--drive-writes-per-day", "0.25", "--drive-capacity", "1GB")
    with running(export, *options) as server:

        def shown() -> int | None:
            return server.client.get("/admin/versions").json()["updates"]["budget_bytes_24h"]

        until(lambda: shown() == 250_000_000)
        found = re.search(r"^ziggurat_update_budget_day_bytes (\S+)", server.client.get("/metrics").text, re.MULTILINE)
        assert found is not None
        assert float(found[1]) == 250_000_000


def test_the_capacity_is_that_of_the_drive_unless_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _budget(tmp_path / "not" / "yet", 2.0, 1_000) == 2_000
    monkeypatch.setattr(endurance, "file_system", lambda _: "ext4")
    of_drive = endurance.capacity(tmp_path)
    assert of_drive is not None
    assert _budget(tmp_path / "not" / "yet", 0.5, None) == int(of_drive * 0.5)
    monkeypatch.setattr(endurance, "file_system", lambda _: "tmpfs")
    assert _budget(tmp_path, 1.0, None) is None, "memory does not wear out"

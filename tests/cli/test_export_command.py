"""``ziggurat export``: what it prints, and that nothing is left of one that fails or is stopped."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.exporting.export_kit import PLAIN, trained
from ziggurat.cli.main import Stopped, main
from ziggurat.exporting import export as exporting


def ziggurat(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *line: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["ziggurat", *line])
    with pytest.raises(SystemExit) as stop:
        main()
    out, errors = capsys.readouterr()
    return int(stop.value.code or 0), out, errors


def umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("run"), PLAIN).folder


def test_it_prints_what_it_wrote(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    status, printed, _ = ziggurat(capsys, monkeypatch, "export", str(run), str(out))
    assert status == 0
    assert "table user: 52 rows of 8, fp32" in printed
    assert "rows predicted both ways: equal to the bit" in printed
    assert "columns of the user or the context: user, age" in printed
    modes = {path.stat().st_mode & 0o777 for path in out.rglob("*") if path.is_file()}
    assert modes == {0o666 & ~umask()}, "another user may serve it"
    smaller = tmp_path / "smaller"
    status, printed, _ = ziggurat(capsys, monkeypatch, "export", str(run), str(smaller), "--precision", "int8")
    assert "tables 8.19 kB, 100% of fp32" in printed, "blocks are filled alike, as these tables are tiny"
    assert "validation/ne: " in printed
    status, printed, errors = ziggurat(capsys, monkeypatch, "export", str(run), str(out))
    assert (status, printed) == (1, "")
    assert errors.splitlines()[0] == f"error: {out} exists"
    assert ziggurat(capsys, monkeypatch, "verify", str(out))[0] == 0


def test_one_that_is_stopped_leaves_nothing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    def stop(*arguments: object) -> None:
        raise Stopped(signal.SIGINT)

    monkeypatch.setattr(exporting, "compared", stop)
    status, _, errors = ziggurat(capsys, monkeypatch, "export", str(run), str(tmp_path / "out"))
    assert status == 130
    assert "no file is left incomplete" in errors
    assert list(tmp_path.iterdir()) == []

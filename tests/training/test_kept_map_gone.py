"""Data whose encoder continues an earlier one: usable when that one is gone, refused when it has changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.exporting.export_kit import PLAIN, log_columns, make_experiment, write_log
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.training import api
from ziggurat.training.experiment import Experiment

LEARNED = {"name": "learned_hash", "rows": 20, "private_rows": 4, "proxy_passes": 2}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.parquet", log_columns(600))
    return tmp_path


def _experiment(folder: Path, **encoder: object) -> Experiment:
    return make_experiment(folder, [dict(PLAIN[0], encoder={**LEARNED, **encoder}), *PLAIN[1:]], embeddings__dim=8)


@pytest.mark.parametrize("prepared", ["february", None], ids=["named", "default folder"])
def test_data_stays_usable_when_what_it_continues_is_gone(folder: Path, prepared: str | None) -> None:
    api.prepare(_experiment(folder), folder / "january")
    continued = _experiment(folder, keep="january")
    dataset = api.prepare(continued, prepared)
    shutil.rmtree(folder / "january")
    again = api.prepare(continued, prepared)
    assert (again.folder, again.fingerprint) == (dataset.folder, dataset.fingerprint)
    assert api.train(continued, run_folder=folder / "run", prepared=prepared, stop_after=1).step == 1
    others = _experiment(folder, keep="december")
    with pytest.raises(DataError if prepared is None else RunFolderError):
        api.prepare(others, prepared)
    with pytest.raises(DataError, match=r"january/encoders/transform.json: not found"):
        api.prepare(continued, "march")


def test_data_is_refused_when_what_it_continues_has_changed(folder: Path) -> None:
    api.prepare(_experiment(folder), folder / "january")
    continued = _experiment(folder, keep="january")
    api.prepare(continued, "february")
    shutil.rmtree(folder / "january")
    api.prepare(_experiment(folder, seed=1), folder / "january")
    with pytest.raises(RunFolderError, match="february: contains a dataset prepared from another config"):
        api.prepare(continued, "february")

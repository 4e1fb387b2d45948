"""A change of the version is answered once all workers predict with it, and says so where one of them does not."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest

from tests.serving.http_kit import served_here
from tests.serving.versions_kit import STEPS, Trained, following, trained, until, versions_of
from ziggurat.serving.http.access_log import AccessLog
from ziggurat.serving.http.fresh.version_watch import VersionWatch
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.versions import control
from ziggurat.serving.versions.folder import VersionFolder
from ziggurat.serving.versions.updater import Updater
from ziggurat.serving.versions.workers_seen import WorkerMark, workers_seen


@pytest.fixture(scope="module")
def run() -> Trained:
    return trained()


def two_versions(run: Trained, root: Path) -> VersionFolder:
    folder, place = versions_of(run.export(STEPS[0]), root / "versions"), root / "checkpoints"
    updater = Updater(folder, run.export(STEPS[0]), following(place, folder))
    for step in STEPS[:2]:
        run.put(step, place)
        updater.step()
    return folder


def test_a_worker_that_has_not_changed_makes_the_answer_202(
    run: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "_REACHED_S", 0.1)
    folder = two_versions(run, tmp_path)
    newest = folder.records()[-1]
    slow = WorkerMark(folder.root)
    slow.set(0)
    with (
        served_here(ServedModel.open(run.export(STEPS[0])), versions=folder) as url,
        httpx.Client(base_url=url, trust_env=False, timeout=60) as client,
    ):
        found = client.post("/admin/pin", json={"version": newest.short})
        assert (found.status_code, found.json()["reached_all_workers"]) == (202, False)
        assert found.json()["current"] == newest.short
        slow.set(newest.number)
        found = client.post("/admin/pin", json={"version": newest.short})
        assert (found.status_code, found.json()["reached_all_workers"]) == (200, True)
    slow.close()


def test_a_worker_says_that_it_has_a_version_once_it_predicts_with_it(run: Trained, tmp_path: Path) -> None:
    folder = two_versions(run, tmp_path)
    exported = ServedModel.open(run.export(STEPS[0]))
    watch = VersionWatch(folder, exported, AccessLog(None))
    model = watch.first()
    number = folder.pointer().number
    seen: list[int] = []
    given: list[ServedModel] = []

    def replace(found: Any) -> None:
        seen.append(workers_seen(folder.root)[os.getpid()])
        given.append(found)

    service: Any = SimpleNamespace(
        model=model, batcher=SimpleNamespace(replace=replace), metrics=SimpleNamespace(serve=lambda _: None)
    )
    watch.start(service)
    try:
        assert control.roll_back(folder)["reached_all_workers"] is True
        until(lambda: bool(given))
        assert seen == [number], "it predicts with the version before until it has exchanged the model"
        assert workers_seen(folder.root) == {os.getpid(): 0}
    finally:
        watch.close()
    np.testing.assert_array_equal(run.predicted(given[0].scorer), run.expected(STEPS[0]))

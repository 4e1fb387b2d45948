"""Preparation on a cluster gives the same bytes as in a single process, however the work is divided."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cluster_kit import LocalCluster, contents, log_experiment, write_log
from feature_kit import Experiment, experiment, write_csv

from ziggurat.core.errors import DataError, EnvironmentMismatch
from ziggurat.core.progress import Silent
from ziggurat.features.preparation.prepare import prepare
from ziggurat.features.preparation.ray_cluster import RayCluster

pytestmark = pytest.mark.usefixtures("small_blocks")


def run(parsed: Experiment, folder: Path, cluster: LocalCluster | None = None, progress: Silent | None = None) -> Path:
    return prepare(parsed.data, parsed.features, folder, progress, cluster)


@pytest.mark.parametrize(
    ("kind", "split"),
    [
        ("csv", {"name": "random"}),
        ("csv", {"name": "random", "key": "user"}),
        ("csv", {"name": "time"}),
        ("gz", {"name": "time_within_key", "key": "user"}),
        ("parquet", {"name": "time_within_key", "key": "user"}),
        ("csv", {"name": "files", "validation": 0.2}),
    ],
)
def test_the_dataset_equals_that_of_a_single_process(kind: str, split: dict[str, Any], tmp_path: Path) -> None:
    write_log(tmp_path, kind)
    parsed = log_experiment(tmp_path, kind, split=split)
    alone, cluster = contents(run(parsed, tmp_path / "alone")), LocalCluster()
    together = contents(run(parsed, tmp_path / "together", cluster))
    assert list(together) == list(alone)
    assert together == alone
    assert {"quarantine.jsonl", "encoders/table.city.json", "train/00001.arrow"} <= set(alone)
    assert cluster.items > (10 if kind == "gz" else 20)


def test_a_split_by_files(tmp_path: Path) -> None:
    write_log(tmp_path)
    source = {"name": "csv", "files": ["a.csv"]}
    split = {"name": "files", "validation": ["b.csv"], "test": ["c.csv"]}
    parsed = log_experiment(tmp_path, source=source, split=split)
    assert contents(run(parsed, tmp_path / "together", LocalCluster())) == contents(run(parsed, tmp_path / "alone"))


def test_messages_keep_relative_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "logs").mkdir()
    write_log(tmp_path / "logs")
    monkeypatch.chdir(tmp_path)
    parsed = log_experiment(Path("logs"))
    together = contents(run(parsed, Path("together"), LocalCluster()))
    assert together == contents(run(parsed, Path("alone")))
    assert b'{"file": "logs/a.csv", "line": ' in together["quarantine.jsonl"]


class _RetryingCluster(LocalCluster):
    """Processes every item twice, as if a worker died after its work and before it sent the result."""

    def work(self, work: Callable[[Any, Any], Any], shared: Any, item: Any) -> Any:
        super().work(work, shared, item)
        return super().work(work, shared, item)


def test_retried_work_gives_the_same_dataset(tmp_path: Path) -> None:
    write_log(tmp_path)
    parsed = log_experiment(tmp_path)
    assert contents(run(parsed, tmp_path / "together", _RetryingCluster())) == contents(run(parsed, tmp_path / "alone"))


def test_a_bad_row_gives_the_same_error_as_in_a_single_process(tmp_path: Path) -> None:
    write_log(tmp_path)
    parsed = log_experiment(tmp_path, on_bad_row="fail")
    with pytest.raises(DataError) as alone:
        run(parsed, tmp_path / "alone")
    with pytest.raises(DataError) as together:
        run(parsed, tmp_path / "together", LocalCluster())
    assert str(together.value) == str(alone.value)
    assert str(tmp_path / "a.csv") in str(alone.value)


def test_undeclared_brackets_are_rejected_on_a_cluster_as_well(tmp_path: Path) -> None:
    write_csv(tmp_path / "log.csv", {"tags": ["[1|2]"] * 2000, "click": [0, 1] * 1000})
    parsed = experiment([{"name": "tags", "kind": "bag"}], folder=str(tmp_path))
    for cluster in (None, LocalCluster()):
        with pytest.raises(DataError, match="every cell of column 'tags' is a list in brackets"):
            run(parsed, tmp_path / f"{cluster}", cluster)


class _StopsAfter(Silent):
    """Interrupts a preparation, as a signal would, at a given progress report of a stage."""

    def __init__(self, stage: str, reports: int) -> None:
        self._stage, self._remaining, self._active = stage, reports, False

    def start(self, stage: str, total: float | None, unit: str) -> None:
        self._active = stage == self._stage

    def advance(self, done: float, **figures: float | str) -> None:
        self._remaining -= self._active
        if self._active and self._remaining == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("started_by", "stage", "reports"),
    [
        ("one process", "read", 1),
        ("one process", "encode", 1),
        ("a cluster", "read", 9),
        ("a cluster", "fit", 2),
        ("a cluster", "encode", 2),
    ],
)
def test_cluster_and_single_process_resume_each_other(
    tmp_path: Path, started_by: str, stage: str, reports: int
) -> None:
    write_log(tmp_path)
    parsed = log_experiment(tmp_path, split={"name": "time"})
    whole, folder = contents(run(parsed, tmp_path / "whole")), tmp_path / "interrupted"
    first, second = (None, LocalCluster()) if started_by == "one process" else (LocalCluster(), None)
    with pytest.raises(KeyboardInterrupt):
        run(parsed, folder, first, _StopsAfter(stage, reports))
    assert contents(run(parsed, folder, second)) == whole


class _ClusterWithoutPath(LocalCluster):
    """A cluster whose workers do not see a file or folder."""

    def __init__(self, hidden: Path) -> None:
        super().__init__()
        self._hidden = hidden

    def work(self, work: Callable[[Any, Any], Any], shared: Any, item: Any) -> Any:
        renamed = self._hidden.rename(self._hidden.with_name("elsewhere"))
        try:
            return super().work(work, shared, item)
        finally:
            renamed.rename(self._hidden)


@pytest.mark.parametrize("lost", ["a.csv", "prepared/.staging"])
def test_a_host_that_does_not_see_the_files_is_an_error(tmp_path: Path, lost: str) -> None:
    write_log(tmp_path)
    with pytest.raises(DataError, match=rf"{lost}: does not exist for a worker on host .*\n  hint: keep raw files and"):
        run(log_experiment(tmp_path), tmp_path / "prepared", _ClusterWithoutPath(tmp_path / lost))


def test_a_missing_ray_is_reported_with_a_hint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_log(tmp_path)
    parsed = log_experiment(tmp_path)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(EnvironmentMismatch, match=r"needs Ray, .*\n  hint: pip install 'ziggurat\[ray\]'"):
        prepare(parsed.data, parsed.features, tmp_path / "prepared", cluster=RayCluster())

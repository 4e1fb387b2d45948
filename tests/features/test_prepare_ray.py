"""Preparation on a real Ray cluster of two workers gives the bytes of a single process, even if workers are killed."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cluster_kit import contents, log_experiment, write_log
from feature_kit import Experiment
from typer.testing import CliRunner

from tests.commands import ziggurat
from ziggurat.cli.main import app
from ziggurat.core.errors import DataError, EnvironmentMismatch, WorkersLost
from ziggurat.features.preparation import ray_cluster
from ziggurat.features.preparation.prepare import prepare
from ziggurat.features.preparation.ray_cluster import RayCluster, start_local

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ziggurat[ray]'")
pytestmark = pytest.mark.usefixtures("small_blocks", "two_workers")


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    """Starts a local cluster; its folder is not in ``tmp_path`` because paths of its sockets must be short."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder, pytest.MonkeyPatch.context() as patched:
        python_path = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        patched.setenv("PYTHONPATH", os.pathsep.join(python_path))  # so that workers can import this module
        start_local(num_cpus=2, object_store_memory=10**8, _temp_dir=folder)
        try:
            yield
        finally:
            ray.shutdown()


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("logs")
    write_log(folder)
    return folder


def run(parsed: Experiment, folder: Path, cluster: RayCluster | None = None) -> dict[str, bytes]:
    return contents(prepare(parsed.data, parsed.features, folder, cluster=cluster))


def test_the_dataset_equals_that_of_a_single_process(logs: Path, tmp_path: Path) -> None:
    parsed = log_experiment(logs, split={"name": "time_within_key", "key": "user"})
    alone, together = (run(parsed, tmp_path / name, cluster) for name, cluster in (("a", None), ("b", RayCluster())))
    assert together == alone
    assert b'a.csv", "line": ' in together["quarantine.jsonl"]
    assert ray.is_initialized()  # an existing connection stays open


def write_experiment(logs: Path, folder: Path) -> None:
    features = """
features:
  - {name: user, kind: categorical, type: integer}
  - {name: tags, kind: bag}
  - {name: age, kind: numeric}
"""
    labels = "labels: [{name: click}], on_bad_row: quarantine, group: user"
    source = f"folder: {os.path.relpath(logs, folder)}, source: {{name: csv, files: ['*.csv']}}"
    (folder / "exp.yaml").write_text(f"name: shop\ndata: {{{source}, {labels}}}\n{features}")


def test_the_command_prepares_on_a_cluster(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_experiment(logs, tmp_path)
    outputs: list[str] = []
    for options in ([], ["--ray", "local"]):
        result = CliRunner().invoke(app, ["prepare", "exp.yaml", "--prepared", f"to{len(options)}", *options])
        assert result.exit_code == 0, result.output
        outputs.append(result.stdout)
    assert outputs[1] == outputs[0].replace("to0", "to2")
    assert contents(tmp_path / "to2") == contents(tmp_path / "to0")


def test_the_command_prepares_on_a_cluster_by_its_address(logs: Path, tmp_path: Path) -> None:
    write_experiment(logs, tmp_path)
    address = ray.get_runtime_context().gcs_address
    for place in (["alone"], ["together", "--ray", address]):
        status, _, err = ziggurat("prepare", "exp.yaml", "--prepared", *place, folder=tmp_path)
        assert status == 0, err
    assert contents(tmp_path / "together") == contents(tmp_path / "alone")


@pytest.mark.parametrize("what", ["a bad row", "a broken file"])
def test_errors_equal_those_of_a_single_process(logs: Path, tmp_path: Path, what: str) -> None:
    parsed = log_experiment(logs, on_bad_row="fail")
    place = rf"{logs}/a\.csv, line \d+, column '(price|click)'"
    if what == "a broken file":
        write_log(tmp_path, "gz")
        file = tmp_path / "b.csv.gz"
        file.write_bytes(file.read_bytes()[:-20])
        parsed, place = log_experiment(tmp_path, "gz"), rf"{file}: truncated or corrupt gzip data"
    with pytest.raises(DataError) as alone:
        run(parsed, tmp_path / "alone")
    with pytest.raises(DataError) as together:
        run(parsed, tmp_path / "together", RayCluster())
    assert str(together.value) == str(alone.value)
    assert type(together.value) is DataError
    assert re.match(place, str(together.value))


def killing_once(killed: Path, work: Callable[[Any, Any], Any], shared: Any, item: Any) -> Any:
    """Kills the worker after the first item of each kind of work, when its files are written."""
    result = work(shared, item)
    try:
        (killed / work.__name__).touch(exist_ok=False)
    except FileExistsError:
        return result
    (killed / work.__name__).write_text(str(os.getpid()))
    os.kill(os.getpid(), signal.SIGKILL)
    return result


def killing_always(file: int, work: Callable[[Any, Any], Any], shared: Any, item: Any) -> Any:
    """Kills every worker that stages a range of one file."""
    if work.__name__ == "_stage_file_range" and item.file_range.start.file == file:
        os.kill(os.getpid(), signal.SIGKILL)
    return work(shared, item)


class WrappingCluster(RayCluster):
    """A Ray cluster whose workers call a wrapper around their work."""

    def __init__(self, wrapper: Callable[..., Any], *arguments: Any) -> None:
        super().__init__()
        self._wrapper = partial(wrapper, *arguments)

    def run(self, work: Callable[[Any, Any], Any], shared: Any, items: Iterable[Any]) -> Iterator[Any]:
        return super().run(partial(self._wrapper, work), shared, items)


def test_killed_workers_do_not_change_the_dataset(logs: Path, tmp_path: Path) -> None:
    parsed, killed = log_experiment(logs, split={"name": "time"}), tmp_path / "killed"
    killed.mkdir()
    together = run(parsed, tmp_path / "together", WrappingCluster(killing_once, killed))
    assert together == run(parsed, tmp_path / "alone")
    dead = {path.name: int(path.read_text()) for path in killed.iterdir()}
    assert sorted(dead) == ["_fit_one", "_stage_file_range", "_write_file"]
    assert len({os.getpid(), *dead.values()}) == 4


def test_workers_that_die_repeatedly_are_an_error(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parsed, folder = log_experiment(logs), tmp_path / "prepared"
    monkeypatch.setattr(ray_cluster, "MAX_TRIES", 2)  # each try starts a new worker
    with pytest.raises(WorkersLost, match=r"2 workers died at the same file range[\s\S]*hint: check whether"):
        run(parsed, folder, WrappingCluster(killing_always, 1))
    journal = (folder / ".staging" / "journal.jsonl").read_text().splitlines()
    assert len(journal) > 3  # the first file is staged
    assert run(parsed, folder) == run(parsed, tmp_path / "alone")


def test_workers_with_other_versions_are_rejected(logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "__version__", "1.0")  # of this process; the workers import their own
    with pytest.raises(EnvironmentMismatch, match=r"host .*: a worker has numpy 2.*, the caller has numpy 1\.0\n"):
        run(log_experiment(logs), tmp_path / "prepared", RayCluster())

"""A search whose trials a real Ray cluster trains: it finds the same, stops, resumes, and names what a host lacks."""

from __future__ import annotations

import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.commands import Command
from tests.training.conftest import MakeExperiment
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.features.preparation.ray_cluster import RayCluster, start_local
from ziggurat.search.hyperparameters import search_hyperparameters
from ziggurat.search.ray_trial import ray_start, run_process
from ziggurat.search.trial_process import TrialFiles
from ziggurat.training.experiment import to_yaml

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'ziggurat[ray]'")
SPACE = "search: {space: {optimizer.lr: {log: [1e-4, 3e-2]}}}"


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Starts a cluster of two CPUs on this machine; its folder is short because those of sockets must be."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        start_local(num_cpus=2, object_store_memory=10**8, _temp_dir=folder)
        try:
            yield ray.get_runtime_context().gcs_address
        finally:
            ray.shutdown()


def test_trials_on_a_cluster_equal_those_of_this_machine(address: str, make_experiment: MakeExperiment) -> None:
    Path("space.yaml").write_text(SPACE)
    experiment = make_experiment(training__threads=1)
    here = search_hyperparameters(experiment, "here", trials=1, space="space.yaml")
    there = search_hyperparameters(experiment, "there", trials=1, space="space.yaml", ray=address, jobs=1)
    assert [each.settings for each in there.trials] == [each.settings for each in here.trials]
    assert [each.value for each in there.trials] == [each.value for each in here.trials]
    assert there.test == here.test
    assert [path.name for path in Path("there/trials").iterdir()] == [
        path.name for path in Path("here/trials").iterdir()
    ]
    assert ray.is_initialized()  # a connection that was there stays open


@pytest.mark.usefixtures("address")
def test_a_trial_for_each_cpu_at_a_time(tmp_path: Path) -> None:
    with RayCluster() as cluster:
        assert ray_start(cluster, tmp_path, None, "auto")[0] == 2
        assert ray_start(cluster, tmp_path, 1, "auto")[0] == 1


def test_a_stopped_search_resumes(address: str, make_experiment: MakeExperiment) -> None:
    Path("space.yaml").write_text(SPACE)
    Path("exp.yaml").write_text(to_yaml(make_experiment(training__epochs=3)))
    arguments = ["search", "hyperparameters", "exp.yaml", "--trials", "2", "--space", "space.yaml", "--ray", address]
    command = Command(*arguments)
    metrics = Path("searches/small/trials/0000/metrics.jsonl")
    _wait(lambda: metrics.exists() or command.poll() is not None)
    command.send_signal(signal.SIGINT)
    out, errors = command.communicate()
    assert command.poll() == 130, errors
    assert "stopped by SIGINT; " in errors
    assert not _trials()
    command = Command(*arguments)
    out, errors = command.communicate()
    assert command.poll() == 0, errors
    assert "searches/small/best.yaml" in out


def test_trials_do_not_outlive_a_search_that_is_killed(address: str, make_experiment: MakeExperiment) -> None:
    Path("space.yaml").write_text(SPACE)
    Path("exp.yaml").write_text(to_yaml(make_experiment(training__epochs=200)))
    command = Command(
        "search", "hyperparameters", "exp.yaml", "--trials", "2", "--space", "space.yaml", "--ray", address
    )
    _wait(lambda: bool(_trials()) or command.poll() is not None)
    command.kill()
    command.communicate()
    _wait(lambda: not _trials())


def test_a_host_without_the_folders_is_named(tmp_path: Path) -> None:
    files = TrialFiles.of(tmp_path / "0000")
    with pytest.raises(EnvironmentMismatch, match=r"host .*0000\.json is not there\n.*same path"):
        run_process(files, tmp_path, 1)
    files.spec.write_text("{}")
    with pytest.raises(EnvironmentMismatch, match=r"host .*prepared is not there"):
        run_process(files, tmp_path / "prepared", 1)


def _trials() -> list[int]:
    """Returns the ids of the processes of this directory's trials."""
    here, found = str(Path.cwd()), []
    for process in psutil.process_iter():
        try:
            if "ziggurat.search.trial" in process.cmdline() and any(here in part for part in process.cmdline()):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


def _wait(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 120
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.1)

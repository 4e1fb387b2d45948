"""Trains the trials of a search on the hosts of a Ray cluster, a task each, which starts the process of the trial.

The hosts see the folders of the search and of the prepared data under the same paths as the process that searches.
A trial stops when its file ``NUMBER.stop`` appears. If its worker or host is lost, Ray starts the task again, and the
trial goes on from its last checkpoint; if the process that searches ends, so do its tasks and their processes.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
from pathlib import Path

from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.features.preparation.ray_cluster import RayCluster
from ziggurat.search.trial_process import Start, TrialFiles, start_trial

_POLL_S = 0.2


def ray_start(cluster: RayCluster, prepared: Path, jobs: int | None, device: str) -> tuple[int, Start]:
    """Returns how many trials the cluster trains at a time, and what starts them.

    Args:
        cluster: the cluster, entered.
        prepared: the folder of the prepared data.
        jobs: trials at a time; by default one for each GPU, or each CPU if there is none.
        device: ``training.device`` of the experiment.
    """
    cpus, gpus = cluster.resources()
    use_gpus = gpus > 0 and device != "cpu"
    jobs = jobs or (gpus if use_gpus else cpus)
    own_cpus, own_gpus = max(1, cpus // jobs), 1 if use_gpus else 0
    return jobs, lambda files: RayProcess(cluster, files, prepared, own_cpus, own_gpus)


class RayProcess:
    """A trial in a process that a task of a Ray cluster starts.

    Args:
        cluster: the cluster, entered.
        files: the files of the trial.
        prepared: the folder of the prepared data.
        cpus: CPUs that it takes, and threads of torch unless ``training.threads`` says another number.
        gpus: GPUs that it takes.
    """

    def __init__(self, cluster: RayCluster, files: TrialFiles, prepared: Path, cpus: int, gpus: int) -> None:
        self._cluster, self._files = cluster, files
        self._future = cluster.submit(run_process, files, prepared, cpus, cpus=cpus, gpus=gpus)
        self._status: int | None = None

    def poll(self) -> int | None:
        if self._status is None:
            self._status = self._cluster.poll(self._future)
        return self._status

    def stop(self) -> None:
        self._files.stop.touch()

    def kill(self) -> None:
        self._cluster.cancel(self._future)


def run_process(files: TrialFiles, prepared: Path, threads: int) -> int:
    """Runs on a worker: trains the trial in a process, and returns its exit status.

    Raises:
        EnvironmentMismatch: this host does not see the folders.
    """
    for path in (files.spec, prepared):
        if not path.exists():
            raise EnvironmentMismatch(
                f"host {socket.gethostname()}: {path} is not there",
                "put the search (--run) and the prepared data (--prepared) into folders that all hosts of the cluster "
                "have under the same path, such as those of a network file system",
            )
    process = start_trial(files, threads)
    try:
        asked = False
        while process.poll() is None:
            if not asked and files.stop.exists():
                process.send_signal(signal.SIGTERM)
                asked = True
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
    finally:
        if process.poll() is None:
            process.kill()
    return process.returncode

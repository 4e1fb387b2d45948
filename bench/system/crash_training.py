"""The training that ``checkpoint_crash`` kills, in one process without start-up time, or as two launched ranks."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import psutil

from bench.contestant import ROOT
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.reader import CheckpointReader
from ziggurat.core.files import write_json
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn
from ziggurat.data.synthetic.generate import generate
from ziggurat.training import api

COLUMNS = {"user": 3_000, "item": 2_000, "place": 40}
DIM = 16
SAVE_EVERY = 5
BATCH_SIZE = 256
POLICIES = ("intermittent", "consecutive", "one_shot", "full")
END_S = 60.0
"""The seconds within which killed processes, and ranks that lost another rank, have to end."""
_DEVICES = {
    "device": "cpu", "memory": "1GB", "lookup_bandwidth": 1e9, "intra_bandwidth": 1e9, "inter_bandwidth": 1e9,
}  # fmt: skip
"""Given rather than measured, so that every run has the same plan."""


def write_training(folder: Path, steps: int) -> None:
    """Writes a training of ``steps`` steps: the log, an experiment ``POLICY.json`` per policy, and ``prepared``."""
    columns = tuple(CategoricalColumn(name=name, cardinality=rows) for name, rows in COLUMNS.items())
    labels = (LabelColumn(name="y", rate=0.3),)
    config = GeneratorConfig(rows=20_000, labels=labels, categorical=columns, pairs=(("user", "item"),))
    generate(config, folder / "log.csv")
    for policy in POLICIES:
        write_json(folder / f"{policy}.json", experiment(folder, policy, steps))
    api.prepare(api.load_experiment(folder / f"{POLICIES[0]}.json"), folder / "prepared")


def experiment(folder: Path, policy: str, steps: int) -> dict[str, Any]:
    """Returns the unparsed experiment, with dropout, so that the random state has to be restored too."""
    return {
        "name": "crash",
        "data": {
            "folder": str(folder),
            "source": {"name": "csv", "files": ["log.csv"]},
            "split": {"name": "random", "validation": 0.1, "test": 0.1},
            "labels": [{"name": "y"}],
        },
        "features": [{"name": name, "kind": "categorical", "type": "integer"} for name in COLUMNS],
        "embeddings": {"dim": DIM, "optimizer": {"name": "rowwise_adagrad", "lr": 0.05}},
        "model": {"name": "deepfm", "deep": {"hidden": [32], "dropout": 0.2}},
        "training": {
            "batch_size": BATCH_SIZE, "epochs": 10**6, "max_steps": steps, "evaluate_every": 10**6, "device": "cpu",
            "save_every": SAVE_EVERY, "log_every": SAVE_EVERY, "threads": 1,
        },
        "checkpoints": {"policy": policy},
        "parallel": {"timeout_s": 30},
        "planning": {
            "planner": {"replicate_up_to": 1}, "topology": _DEVICES, "tables": {"user": {"sharding": "row_wise"}},
        },
    }  # fmt: skip


class TrainingProcess(Protocol):
    """A running training."""

    def alive(self) -> bool:
        """Returns whether any of its processes runs."""
        ...

    def kill(self, draw: np.random.Generator) -> str:
        """Sends SIGKILL to all or some of its processes, and waits until all have ended.

        Returns:
            The processes hit; empty if the training had already ended.

        Raises:
            AssertionError: a process survives.
        """
        ...

    def end(self) -> str:
        """Waits for its end, and returns the end of its output."""
        ...


class SingleProcess:
    """A training in one process, forked from a server that has loaded the libraries.

    Args:
        folder: the folder of :func:`write_training`.
        policy: the policy of checkpoints.
        run: the run folder.
        keep: the number of checkpoints to keep.
    """

    def __init__(self, folder: Path, policy: str, run: Path, keep: int = 2) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._log = run.with_suffix(".log")
        self._process = context.Process(target=_train, args=(folder, policy, run, keep, self._log), daemon=True)
        self._process.start()

    def alive(self) -> bool:
        return self._process.is_alive()

    def kill(self, draw: np.random.Generator) -> str:
        del draw
        self._process.kill()
        self._process.join(END_S)
        assert self._process.exitcode is not None, "the process survives SIGKILL"
        return "the process" if self._process.exitcode == -signal.SIGKILL else ""

    def end(self) -> str:
        self._process.join()
        return _tail(self._log)


class TwoRanks:
    """A training of two ranks under ``ziggurat train --nproc 2``; the arguments are those of :class:`SingleProcess`."""

    def __init__(self, folder: Path, policy: str, run: Path, keep: int = 2) -> None:
        command = [
            sys.executable,
            "-m",
            "ziggurat",
            "train",
            f"{policy}.json",
            "--prepared",
            "prepared",
            "--nproc",
            "2",
        ]
        command += ["--run", str(run), "--set", f"training.keep={keep}"]
        path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self._log = run.with_suffix(".log")
        with self._log.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)

    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self, draw: np.random.Generator) -> str:
        """Kills all processes, as if the machine failed, or one rank, after which the launcher stops the other."""
        if not self.alive():
            return ""
        launcher = psutil.Process(self._process.pid)
        ranks = sorted(launcher.children(), key=lambda each: each.pid)
        one = draw.random() < 0.4 and len(ranks) == 2
        hit = [ranks[int(draw.integers(2))]] if one else [*ranks, launcher]
        for each in hit:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        _, left = psutil.wait_procs([*ranks, launcher], timeout=END_S)
        self._process.wait(END_S)
        assert not left, f"{left} survive the others"
        return f"rank {ranks.index(hit[0])}" if one else "all"

    def end(self) -> str:
        self._process.wait()
        return _tail(self._log)


def digest(saved: CheckpointReader) -> str:
    """Returns a digest of a checkpoint's tensors and state, except what counts interruptions and lines of the log."""
    total = hashlib.sha256()
    state = {name: value for name, value in saved.state.items() if name not in {"restores", "stopped", "records"}}
    total.update(json.dumps(state, sort_keys=True).encode())
    for group in sorted(saved.names()):
        for name, tensor in sorted(saved.groups[group].items()):
            total.update(f"\0{group}/{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
            total.update(tensor.contiguous().numpy().tobytes())
    return total.hexdigest()


def digests(run: Path) -> dict[int, str]:
    """Returns step -> digest, for each checkpoint of a run."""
    folder = CheckpointFolder(run / "checkpoints")
    return {step: digest(folder.load(step)) for step in folder.steps()}


def figures(run: Path) -> Mapping[str, Any] | None:
    """Returns the final figures of a run, or None if it has not ended."""
    path = run / "results.json"
    return json.loads(path.read_text(encoding="utf-8"))["figures"] if path.exists() else None


def _train(folder: Path, policy: str, run: Path, keep: int, log: Path) -> None:
    """Trains in the forked process, and writes its output to ``log``."""
    with log.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    experiment = api.load_experiment(folder / f"{policy}.json", [f"training.keep={keep}"])
    api.train(experiment, run, prepared=folder / "prepared")


def _tail(path: Path) -> str:
    return "\n".join(path.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])

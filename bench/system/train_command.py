"""Runs `ziggurat train` as a user does, in its own process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.contestant import ROOT
from ziggurat.core.errors import EnvironmentMismatch


def trained(config: Path, run: Path, ranks: int, settings: Mapping[str, Any]) -> dict[str, float]:
    """Trains with one thread per process, and returns the figures of the test rows.

    Args:
        config: the file of the experiment; the encoded dataset is created in its folder, or reused.
        run: the run folder.
        ranks: the number of processes.
        settings: dotted key -> value, which override the experiment.
    """
    command = [sys.executable, "-m", "ziggurat", "train", config.name, "--prepared", "prepared", "--run", str(run)]
    command += ["--nproc", str(ranks)]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=config.parent, env=environment, text=True, capture_output=True, check=False)
    if done.returncode != 0:
        raise EnvironmentMismatch(
            f"`{' '.join(command)}` ended with status {done.returncode}: {done.stderr[-800:]}", "run it by hand"
        )
    return json.loads((run / "results.json").read_text(encoding="utf-8"))["figures"]["test"]

"""A training in its own process: `python -m bench.quality.trial SPEC.json OUT.json`.

It reads the experiment from SPEC.json and writes the outcome to OUT.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ziggurat.core.config import parse_config
from ziggurat.core.files import write_json
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.scaling.model_sizes import size_of


def train(spec: dict[str, Any], scratch: Path) -> dict[str, Any]:
    """Trains ``spec["experiment"]`` on the dataset in ``spec["prepared"]``, with a run folder in ``scratch``.

    Returns:
        The figures per split, the size of the model, the seconds, the steps and the step of the best checkpoint.
    """
    experiment = parse_config(Experiment, spec["experiment"])
    dataset = Dataset(Path(spec["prepared"]))
    started = time.perf_counter()
    outcome = api.train(experiment, scratch / "run", prepared=dataset.folder)
    assert outcome.results is not None
    seconds = time.perf_counter() - started
    size = size_of(experiment, dataset.schema)
    return {
        "figures": outcome.results["figures"],
        "seconds": seconds,
        "steps": outcome.step,
        "best_step": (outcome.run.checkpoints.best() or {}).get("step"),
        **asdict(size),
    }


def main(spec: str, out: str) -> None:
    """Runs a training from the command line."""
    with tempfile.TemporaryDirectory(prefix="trial-") as scratch:
        outcome = train(json.loads(Path(spec).read_text(encoding="utf-8")), Path(scratch))
    write_json(Path(out), outcome)


if __name__ == "__main__":
    main(*sys.argv[1:])

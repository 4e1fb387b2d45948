"""Trains one trial: ``python -m ziggurat.search.trial SPEC OUT PARENT``, which a search starts as a process of its own.

``SPEC`` is a JSON file with the experiment, the folder of the prepared data and the run folder. ``OUT`` gets the
figures on validation, or the error, of which the user is told. The test split is not evaluated, so that nothing can be
chosen by it. A trial that was stopped resumes from its last checkpoint. It does not outlive the process with the id
``PARENT``, which started it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ziggurat.core.config import parse_config
from ziggurat.core.errors import ZigguratError
from ziggurat.core.files import write_json
from ziggurat.training.experiment import Experiment
from ziggurat.training.signals import end_with_parent
from ziggurat.training.train import train


def run_trial(spec: dict[str, Any]) -> dict[str, Any]:
    """Trains, or resumes, and returns what ``OUT`` gets; an empty dictionary if a signal stopped it."""
    try:
        experiment = parse_config(Experiment, spec["experiment"])
        outcome = train(experiment, run_folder=spec["run"], prepared=spec["prepared"], splits=("validation",))
    except ZigguratError as error:
        return {"error": {"kind": type(error).__name__, "problem": error.problem, "hint": error.hint}}
    if outcome.results is None:
        return {}
    figures = outcome.results["figures"]["validation"]
    return {"figures": figures, "steps": outcome.results["steps"], "best_step": outcome.results["best_step"]}


def main() -> None:
    """Trains what the file named by the first argument says; the second names the file of the outcome."""
    end_with_parent(int(sys.argv[3]))
    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    write_json(Path(sys.argv[2]), run_trial(spec))


if __name__ == "__main__":
    main()

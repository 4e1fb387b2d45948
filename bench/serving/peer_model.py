"""The model of the serving benchmarks, as ziggurat's export and as what its peers load.

The log is that of ``ziggurat generate``, and the features are those of which a service around an ONNX
model can make arrays by hand: ids, lists of ids, and standardised numbers.

Shape legend: B rows, F dense features.
"""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.serving.open_loop import Request
from ziggurat.core.config import parse_config
from ziggurat.core.progress import Silent
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.data.readers.table_reader import read_table
from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import demo_shape
from ziggurat.exporting.export import export
from ziggurat.exporting.onnx.whole_model import ColumnsOfIds, WholeModel, inputs_of, varying
from ziggurat.exporting.onnx.write import export_onnx
from ziggurat.exporting.opened_run import on_cpu, opened_model, recommenders_of
from ziggurat.exporting.table_files import in_memory
from ziggurat.features.transform import Transform
from ziggurat.training import api
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.run import Run, open_run

IDS = {"user_id": "integer", "item_id": "integer", "category": "text", "device": "text", "hour": "integer"}
NUMBERS = ("age", "price")
CONTEXT = ("user_id", "age", "device", "hour", "last_items")
"""The columns of a context to rank for; candidates have the others."""
_UNSEEN = {"integer": 2**40, "text": "\x00 not in the log"}
_MOST_ROWS, _MOST_IDS = 1 << 16, 1 << 10
_SAMPLE = 20_000


@dataclass(frozen=True, slots=True)
class PeerModel:
    """What the benchmarks serve.

    Attributes:
        export: the folder of ziggurat's export.
        peers: the folder of the peers.
        rows: rows of the log, as JSON gives them.
    """

    export: Path
    peers: Path
    rows: list[dict[str, Any]]

    def predict_bodies(self, count: int) -> list[bytes]:
        """Returns bodies of requests to predict one row."""
        return [json.dumps({"rows": [row]}).encode() for row in self.rows[:count]]

    def rank_bodies(self, count: int, candidates: int, seed: int = 0) -> list[bytes]:
        """Returns bodies of requests to rank."""
        draw = random.Random(seed)
        bodies: list[bytes] = []
        for row in self.rows[:count]:
            others = [
                {name: value for name, value in each.items() if name not in CONTEXT}
                for each in draw.choices(self.rows, k=candidates)
            ]
            context = {name: row[name] for name in CONTEXT}
            bodies.append(json.dumps({"context": context, "candidates": others}).encode())
        return bodies


def requests_of(bodies: Sequence[bytes], path: str) -> list[Request]:
    """Returns bodies as requests to a path."""
    return [Request(path, body) for body in bodies]


def write_peer_model(folder: Path, rows: int, steps: int) -> PeerModel:
    """Trains the model and writes it both ways."""
    found = write_export(folder, rows, steps)
    run = open_run(folder / "run")
    export_onnx(run.folder, folder / "onnx", prepared=folder / "prepared")
    peers = folder / "peers"
    peers.mkdir()
    (folder / "onnx" / "model.onnx").rename(peers / "model.onnx")
    _write_torch(run, folder / "prepared", peers / "model.pt2")
    records = _records(folder)
    (peers / "encoding.json").write_text(json.dumps(_encoding(run, records)), encoding="utf-8")
    return found


def write_export(folder: Path, rows: int, steps: int, checkpoint: str = "best", **training: Any) -> PeerModel:
    """Trains the model and writes ziggurat's export alone.

    Args:
        folder: where the log, the run and the export are written.
        rows: rows of the log.
        steps: of the training.
        checkpoint: the checkpoint that is exported.
        training: further settings of the training.
    """
    generate(demo_shape(rows), folder / "shop.csv")
    run = api.train(_experiment(folder, steps, training), folder / "run", prepared=folder / "prepared").run
    export(run.folder, folder / "export", prepared=folder / "prepared", checkpoint=checkpoint)
    return PeerModel(folder / "export", folder / "peers", [_typed(each) for each in _records(folder)[:_SAMPLE]])


def _records(folder: Path) -> list[dict[str, str]]:
    with (folder / "shop.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def _experiment(folder: Path, steps: int, training: dict[str, Any]) -> Experiment:
    standardised = [{"name": "fill", "value": "median"}, {"name": "standardise"}]
    features: list[dict[str, Any]] = [
        *({"name": name, "kind": "numeric", "transforms": standardised} for name in NUMBERS),
        *({"name": name, "kind": "categorical", "type": kind} for name, kind in IDS.items()),
        {"name": "tags", "kind": "bag", "delimiter": "|"},
        {"name": "last_items", "kind": "sequence", "type": "integer", "delimiter": " ", "last": 10, "table": "item_id"},
    ]
    return parse_config(
        Experiment,
        {
            "name": "shop",
            "data": {
                "folder": str(folder),
                "source": {"name": "csv", "files": ["shop.csv"], "delimiter": ",", "header": True},
                "labels": [{"name": "click"}, {"name": "buy"}],
                "time": "timestamp",
            },
            "features": features,
            "embeddings": {"dim": 16},
            "model": {"name": "deepfm"},
            "training": {"batch_size": 1024, "epochs": 1, "max_steps": steps, "precision": "fp32", **training},
            "checkpoints": {"policy": "consecutive"} if "save_every" in training else {},
        },
    )


def _write_torch(run: Run, prepared: Path, path: Path) -> None:
    opened = on_cpu(run)
    dataset = opened.dataset(prepared)
    with opened_model(opened, dataset, opened.checkpoints.find("best"), Silent()) as found:
        (recommender,) = recommenders_of(found)
        layout = recommender.lookup.layout
        tables = {
            each.name: torch.from_numpy(in_memory(each)(0, each.shape[0]))
            for each in recommender.lookup.tensor_slices()
        }
        columns = ColumnsOfIds(recommender.part, layout, tables)
        model = WholeModel([columns], opened.experiment.tasks(opened.transform().schema)).eval()
        sizes = varying(layout, _MOST_ROWS, _MOST_IDS)
        with torch.no_grad():
            program = torch.export.export(
                model, inputs_of(layout), dynamic_shapes={"dense_BF": sizes[0], "ids": sizes[1:]}
            )
        torch.export.save(program, path)


def _encoding(run: Run, records: Sequence[dict[str, str]]) -> dict[str, Any]:
    """Returns the vocabularies and scales of a run, found by encoding every value of the log."""
    transform = run.transform()
    dense: list[dict[str, Any]] = []
    for name in transform.schema.dense:
        low, high = _encoded(transform, name, [0.0, 1.0])
        dense.append({"column": name, "scale": high - low, "shift": low})
    ids: list[dict[str, Any]] = []
    for name in transform.schema.sparse:
        many, kind = name in {"tags", "last_items"}, IDS.get(name, "text" if name == "tags" else "integer")
        found = {value for each in records for value in _values(name, each[name])}
        values = sorted(found, key=str)
        encoded = _encoded(transform, name, [[each] for each in values] if many else values)
        (unknown,) = _encoded(transform, name, [[_UNSEEN[kind]] if many else _UNSEEN[kind]])
        pairs = [[value, int(each[0] if many else each)] for value, each in zip(values, encoded, strict=True)]
        entry = {"name": name, "column": name, "many": many, "values": pairs}
        ids.append({**entry, "unknown": int(unknown[0] if many else unknown)})
    return {"dense": dense, "ids": ids, "labels": ["click", "buy"]}


def _encoded(transform: Transform, feature: str, values: Sequence[Any]) -> list[Any]:
    """Returns what the transform makes of values of a feature."""
    own = transform.restricted([feature])
    schema = own.raw_schema(labelled=False)
    block = read_table(to_arrow({feature: list(values)}, schema), schema)
    return own.apply(block, labelled=False).batch.column(feature).to_pylist()


def _values(name: str, text: str) -> list[Any]:
    parts = text.split("|") if name == "tags" else text.split(" ") if name == "last_items" else [text]
    is_number = IDS.get(name) == "integer" or name == "last_items"
    return [int(each) if is_number else each for each in parts if each]


def _typed(record: dict[str, str]) -> dict[str, Any]:
    """Returns a row as JSON gives it, with a value in place of each that is missing."""
    row: dict[str, Any] = {name: float(record[name] or 30.0) for name in NUMBERS}
    for name, kind in IDS.items():
        row[name] = (_values(name, record[name]) or [_UNSEEN[kind]])[0]
    return row | {name: _values(name, record[name]) for name in ("tags", "last_items")}

"""The logs of the comparison, as the values of experiments without a seed, and their tables that are made smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from bench.benchmark import Context
from bench.quality.board import ROOT
from bench.quality.collection.sets import COLLECTION
from ziggurat.data.public.catalogue import get_dataset
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn
from ziggurat.data.synthetic.generate import generate

DIM = 16
RATIOS = (2, 5, 10, 50)
SEEDS = (0, 1, 2, 3, 4)
IDS, QUICK_IDS = 200_000, 2_000
ROWS, QUICK_ROWS = 4_000_000, 6_000
KINDS = 500


@dataclass(frozen=True, slots=True)
class Log:
    """A log of the comparison.

    Attributes:
        name: its name in figures.
        values: writes or finds its files, and returns the values of the experiment.
        tables: the tables that are made smaller; each row has :data:`DIM` numbers.
        seeds: seeds of hash, proxy, clusters and training.
        ratios: by how much.
        given: the folder under ``--data`` that it needs, if it is not on the package index.
    """

    name: str
    values: Callable[[Context], dict[str, Any]]
    tables: tuple[str, ...]
    seeds: tuple[int, ...] = SEEDS
    ratios: tuple[int, ...] = RATIOS
    given: str | None = None


def logs(context: Context) -> list[Log]:
    """Returns the logs whose data is there; a quick run has a small generated one."""
    if context.quick:
        return [Log("generated", generated, ("item",), (0,), (10,))]
    return [each for each in LOGS if each.given is None or (context.data and (context.data / each.given).is_dir())]


def generated(context: Context) -> dict[str, Any]:
    """Writes a log of ids of 500 kinds, which share nine tenths of the variance of their effects.

    What an id is like can be learned of one that occurs some ten times: in four million rows that can be some hundred
    thousand ids, not ten million.
    """
    ids, rows = (QUICK_IDS, QUICK_ROWS) if context.quick else (IDS, ROWS)
    folder = context.cache / "learned_hash" / f"generated-{ids}-{rows}"
    file = folder / "log.parquet"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        config = GeneratorConfig(
            rows=rows,
            format="parquet",
            labels=(LabelColumn(name="y", second_order=2.0),),
            categorical=(
                CategoricalColumn(name="item", cardinality=ids, exponent=0.9, kinds=KINDS),
                CategoricalColumn(name="place", cardinality=1000),
                CategoricalColumn(name="device", cardinality=20),
            ),
            pairs=(("item", "place"), ("item", "device")),
        )
        generate(config, file)
    return {
        "name": "generated",
        "data": {
            "folder": str(folder),
            "source": {"name": "parquet", "files": ["log.parquet"]},
            "split": {"name": "random", "validation": 0.05, "test": 0.1},
            "labels": [{"name": "y"}],
        },
        "features": [{"name": name, "kind": "categorical", "type": "integer"} for name in ("item", "place", "device")],
        **_training(context, batch_size=4096 if not context.quick else 256, epochs=20),
    }


def _training(context: Context, batch_size: int, epochs: int) -> dict[str, Any]:
    return {
        "embeddings": {"dim": DIM, "optimizer": {"name": "rowwise_adagrad", "lr": 0.08}, "l2": 0.02},
        "model": {"name": "deepfm", "deep": {"hidden": [64], "dropout": 0.2}},
        "optimizer": {"name": "adam", "lr": 0.001},
        "training": {
            "batch_size": batch_size,
            "epochs": epochs,
            "early_stopping": {"patience": 2},
            **({"max_steps": 10} if context.quick else {}),
        },
    }


def _example(name: str, folder: Path | None) -> dict[str, Any]:
    values: dict[str, Any] = YAML(typ="safe").load((ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8"))
    if folder is not None:
        values["data"]["folder"] = str(folder)
    values["embeddings"] = {**values["embeddings"], "dim": DIM}
    return values


def _movielens(context: Context) -> dict[str, Any]:
    folder = context.cache / "learned_hash" / "movielens-100k"
    get_dataset("movielens-100k", folder)
    values = _example("movielens", folder)
    return {**values, **_training(context, 1024, 60), "evaluation": {}}


def _census(context: Context) -> dict[str, Any]:
    folder = context.cache / "learned_hash" / "census-income"
    get_dataset("census-income", folder)
    values = _example("census", folder)
    values["data"]["labels"] = values["data"]["labels"][:1]
    return {**values, **_training(context, 4096, 60)}


def _frappe(context: Context) -> dict[str, Any]:
    assert context.data is not None
    return {**_example("frappe", context.data / "frappe_x1"), **_training(context, 4096, 60)}


def _amazon(name: str) -> Callable[[Context], dict[str, Any]]:
    def values(context: Context) -> dict[str, Any]:
        log = next(each for each in COLLECTION if each.name == name)
        log.files(context.cache / "learned_hash", context.data)
        files = {"validation": ["validation.csv"], "test": ["test.csv"]}
        return {
            "name": name,
            "data": {
                "folder": str(context.cache / "learned_hash" / name),
                "source": {"name": "csv", "files": ["train.csv"]},
                "split": {"name": "files", **files},
                "labels": [{"name": "bought"}],
            },
            "features": [
                {"name": "user_id", "kind": "categorical"},
                {"name": "item_id", "kind": "categorical"},
                # A mean over all rows of all ids would halve what an id of two rows adds, and only there.
                {
                    "name": "last_items",
                    "kind": "sequence",
                    "delimiter": " ",
                    "last": 20,
                    "table": "item_id",
                    "pooling": "sum",
                },
            ],
            **_training(context, 1024, 60),
        }

    return values


LOGS: tuple[Log, ...] = (
    Log("movielens", _movielens, ("user_id", "item_id", "zip_code")),
    Log("frappe", _frappe, ("user", "item"), given="frappe_x1"),
    Log("amazon_beauty", _amazon("amazon_beauty"), ("user_id", "item_id"), given="amazon_sequences"),
    Log("amazon_toys", _amazon("amazon_toys"), ("user_id", "item_id"), given="amazon_sequences"),
    Log(
        "census",
        _census,
        ("age_value", "wage_per_hour_value", "dividends_value", "capital_gains_value"),
        ratios=(2, 5, 10),
    ),
    Log("generated", generated, ("item",), (0, 1, 2), (10, 50)),
)

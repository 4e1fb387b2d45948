"""The same raw rows give the same bits with a run and with its export at fp32, for every kind of feature and label.

``test_dense_graph`` holds every model to this, with and without bf16; here are the look-ups and the encoders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.exporting.export_kit import (
    EVERY_KIND,
    LABELS,
    PLAIN,
    ROWS,
    log_columns,
    trained,
    with_pooling,
    write_log,
)
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.table_reader import read_table
from ziggurat.exporting.export import export
from ziggurat.exporting.exported_model import ExportedModel
from ziggurat.serving.model.scorer import Scored, Scorer
from ziggurat.training import api
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.prediction.predictor import Predictor, ScoredBlock
from ziggurat.training.recommender import CACHED_ROWS, Recommender

TARGET = {"name": "target_attention", "target": "item"}
TRANSFORMER = {"name": "transformer", "target": "item", "layers": 2}
SETTINGS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "every kind": (EVERY_KIND, {"data__labels": list(LABELS.values()), "evaluation__batch_size": 2 * CACHED_ROWS}),
    "fields": (
        with_pooling(EVERY_KIND, history=TARGET, seen={"name": "transformer"}),
        {
            "embeddings__numeric_bins": 16,
            "embeddings__dropout": 0.2,
            "embeddings__tables": {"item": {"vectors": 2}, "city": {"dim": 4}, "tags": {"dim": 12}},
            "embeddings__groups": [{"features": ["category", "weekday", "visits"], "mlp": {"hidden": [6]}}],
            "model": {"name": "wukong", "layers": 1},
        },
    ),
    "bf16, adam": (
        with_pooling(EVERY_KIND, history=TRANSFORMER, visits={"name": "attention"}),
        {
            "embeddings__optimizer": {"name": "adam", "lr": 0.01},
            "training__precision": "bf16",
            "data__labels": [LABELS["binary"], LABELS["corrected"]],
            "model": {"name": "deepfm", "deep": {"hidden": [16], "norm": "batch"}},
            "training__weight_average": 0.9,
        },
    ),
    "compressed": (
        [
            {"name": "user", "kind": "categorical", "encoder": {"name": "clustered_codes", "rows": 16}},
            {
                "name": "item",
                "kind": "categorical",
                "type": "integer",
                "encoder": {"name": "learned_hash", "rows": 20, "private_rows": 4, "map": "compact"},
            },
            {"name": "history", "kind": "sequence", "type": "integer", "last": 6, "table": "item"},
            {"name": "visits", "kind": "sequence", "type": "integer", "last": 5, "encoder": {"name": "lsh", "rows": 9}},
            {"name": "city", "kind": "categorical", "encoder": {"name": "double_hash", "rows": 6, "private_rows": 1}},
            {
                "name": "tags",
                "kind": "bag",
                "type": "integer",
                "pooling": "sum",
                "encoder": {"name": "quotient_remainder", "rows": 10},
            },
        ],
        {"model": {"name": "deepfm", "deep": {"hidden": [8]}}, "embeddings__dim": 4},
    ),
    "numbers alone": ([PLAIN[2]], {"model": {"name": "logistic_regression"}}),
    "ids alone": (PLAIN[:2], {"model": {"name": "fm"}}),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_raw_rows_give_the_same_bits(name: str, tmp_path: Path) -> None:
    features, changes = SETTINGS[name]
    run = trained(tmp_path, features, **changes)
    found = export(run, tmp_path / "out")
    assert found.manifest.deviation["largest_logit_difference"] == 0
    scorer = Scorer.open(tmp_path / "out", check_tables=True)
    fresh = tmp_path / "fresh.parquet"  # other rows, with ids that training has not seen
    write_log(fresh, {**log_columns(seed=1), "user": [f"u{each % 90}" for each in range(ROWS)]})
    with Predictor(run) as predictor:
        need = predictor.transform.raw_schema(labelled=False)
        table = pq.read_table(fresh)

        def block(first: int, rows: int) -> RawBlock:
            return read_table(table.slice(first, rows), need)

        for first, rows in ((0, 0), (3, 1), (2, 7), (0, 1_000), (0, ROWS)):
            assert_same(predictor.score(block(first, rows)), scorer.score(block(first, rows)))
        whole = scorer.score(block(0, 40))
        singly = [scorer.score(block(row, 1)).predictions_BT for row in range(40)]
        np.testing.assert_allclose(np.concatenate(singly), whole.predictions_BT, rtol=1e-5, atol=1e-6)
        if name == "fields":  # one is enough: it is the metrics' code that is the same
            recommender, dataset = predictor.recommender, run.dataset()
            assert isinstance(recommender, Recommender)
            exported = ExportedModel(scorer, recommender)
            size = run.experiment.evaluation.batch_size
            metrics = evaluate_split(exported, dataset.split("test"), dataset.schema, torch.device("cpu"), size)
            assert metrics.compute() == api.evaluate(run).compute()


def assert_same(one: ScoredBlock, other: Scored) -> None:
    assert np.array_equal(one.kept, other.kept)
    assert one.predictions_BT.tobytes() == other.predictions_BT.tobytes()
    assert one.bad == other.bad
    assert list(one.further) == list(other.further)
    for label, figures in one.further.items():
        assert list(figures) == list(other.further[label])
        assert all(np.array_equal(values, other.further[label][name]) for name, values in figures.items())


def test_a_row_that_cannot_be_encoded_is_named_as_in_prediction(tmp_path: Path) -> None:
    run = trained(tmp_path, [*PLAIN, EVERY_KIND[5]])
    export(run, tmp_path / "out")
    rows = {"user": ["u1", "u2", "u3"], "item": [1, 2, 3], "age": [1.0, 2.0, 3.0], "price": [1.0, float("inf"), 2.0]}
    with Predictor(run) as predictor:
        block = read_table(pa.table(rows), predictor.transform.raw_schema(labelled=False))
        assert_same(predictor.score(block), Scorer.open(tmp_path / "out").score(block))


def test_rows_on_disk_are_exported_from_the_checkpoint(tmp_path: Path) -> None:
    """With deltas, whose rows replace those of the full checkpoint before them."""
    changes: dict[str, Any] = {
        "training__max_steps": 12,
        "training__batch_size": 16,
        "training__evaluate_every": 3,
        "features": [
            {"name": "user", "kind": "categorical", "encoder": {"name": "hash", "rows": 900}},
            {"name": "item", "kind": "categorical", "type": "integer", "encoder": {"name": "hash", "rows": 700}},
        ],
        "evaluation__batch_size": 64,
    }
    run = trained(tmp_path, **changes)
    on_disk = trained(tmp_path, name="on disk", **changes, planning={"beyond_memory": {"memory": "20kB"}})
    export(run, tmp_path / "out")
    found = export(on_disk, tmp_path / "other", prepared=run.dataset().folder)
    for entry in found.manifest.tables:
        file = f"tables/{entry.file}"
        assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "other" / file).read_bytes()
    assert not list((tmp_path / "other").rglob("*.float32"))


@pytest.mark.parametrize("precision", ["fp16", "int8", "int4"])
def test_a_rounded_export_says_what_that_changes(precision: Any, tmp_path: Path) -> None:
    run = trained(tmp_path, EVERY_KIND)
    found = export(run, tmp_path / "out", precision=precision)
    deviation = found.manifest.deviation
    assert 0 < deviation["largest_logit_difference"] < {"fp16": 0.01, "int8": 0.1, "int4": 1.0}[precision]
    assert {"validation/ne", "validation/auc"} <= set(deviation)
    assert found.table_bytes == sum(entry.layout(precision).bytes for entry in found.manifest.tables)


def test_what_cannot_be_exported_is_said_before_anything_is_written(tmp_path: Path) -> None:
    run = trained(tmp_path)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(ConfigError, match=r"out exists\n.*name a new folder"):
        export(run, out)
    with pytest.raises(ConfigError, match="precision: received 'fp8'"):
        export(run, tmp_path / "new", precision="fp8")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="prepared dataset"):
        export(run, tmp_path / "new", prepared=tmp_path / "nowhere")
    assert not (tmp_path / "new").exists()

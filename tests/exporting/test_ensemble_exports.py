"""An export of an ensemble predicts the bits that the ensemble predicts, and is served as any other export."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.exporting.export_kit import EVERY_KIND, LABELS, PLAIN, ROWS, log_columns, trained, with_pooling, write_log
from tests.exporting.test_export_parity import assert_same
from tests.serving.http_kit import running
from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.core.sealed import sealed
from ziggurat.data.readers.blocks import RawBlock
from ziggurat.data.readers.table_reader import read_table
from ziggurat.exporting.export import Exported, export
from ziggurat.exporting.onnx.write import TOLERANCE, export_onnx
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.tables.mapped_rows import MappedRows
from ziggurat.serving.tables.plain_lookup import PlainLookup
from ziggurat.serving.versions.checkpoints import open_followed
from ziggurat.training import api
from ziggurat.training.ensemble.ensemble import Ensemble
from ziggurat.training.prediction.predictor import Predictor

LABELLED = [LABELS["binary"], LABELS["corrected"], LABELS["poisson"], LABELS["quantile"], LABELS["ordinal"]]
NAMES = [label["name"] for label in LABELLED]
MEMBERS: tuple[tuple[list[dict[str, Any]], dict[str, Any]], ...] = (
    (EVERY_KIND, {}),
    (
        with_pooling(EVERY_KIND, seen={"name": "transformer"}),
        {
            "embeddings__tables": {"item": {"vectors": 2}, "city": {"dim": 4}},
            "embeddings__groups": [{"features": ["category", "weekday", "visits"], "mlp": {"hidden": [6]}}],
            "embeddings__numeric_bins": 16,
            "training__precision": "bf16",
            "model": {"name": "wukong", "layers": 1},
        },
    ),
    (EVERY_KIND, {"model": {"name": "deepfm", "deep": {"hidden": [16], "norm": "batch"}}, "embeddings__dim": 4}),
)


@pytest.fixture(scope="module")
def ensemble(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three members with tables of different widths, whose weights differ between labels."""
    folder = tmp_path_factory.mktemp("ensemble")
    runs = [
        trained(folder, features, f"run-{number}", data__labels=LABELLED, training__seed=number, **changes)
        for number, (features, changes) in enumerate(MEMBERS)
    ]
    built = api.build_ensemble(runs, folder / "ensemble", equal_weights=True).ensemble
    weights = [[0.5, 0.25, 0.25], [0.0, 0.625, 0.375], [1.0, 0.0, 0.0], [0.1, 0.2, 0.7], [1 / 3, 1 / 3, 1 / 3]]
    members = (
        replace(member, weights=dict(zip(NAMES, each, strict=True)))
        for member, each in zip(built.members, np.transpose(weights).tolist(), strict=True)
    )
    Ensemble(built.folder, tuple(members)).save()
    return built.folder


@pytest.fixture(scope="module")
def exported(ensemble: Path) -> Exported:
    return export(ensemble, ensemble.with_name("out"))


def test_raw_rows_give_the_same_bits(ensemble: Path, exported: Exported, tmp_path: Path) -> None:
    assert exported.manifest.deviation["largest_logit_difference"] == 0
    scorer = Scorer.open(exported.folder, check_tables=True)
    manifest = scorer.manifest
    rows = {entry.name: MappedRows(exported.folder / "tables" / entry.file, entry, "fp32") for entry in manifest.tables}
    plain = Scorer(exported.folder, manifest, scorer.transform, PlainLookup(manifest, rows), scorer.dense)
    write_log(tmp_path / "fresh.parquet", {**log_columns(seed=1), "user": [f"u{each % 90}" for each in range(ROWS)]})
    table = pq.read_table(tmp_path / "fresh.parquet")
    with Predictor(ensemble) as predictor:
        need = predictor.transform.raw_schema(labelled=False)

        def block(first: int, rows: int) -> RawBlock:
            return read_table(table.slice(first, rows), need)

        for first, count in ((0, 0), (3, 1), (2, 7), (0, 1_000), (0, ROWS)):
            expected = predictor.score(block(first, count))
            assert_same(expected, scorer.score(block(first, count)))
            assert_same(expected, plain.score(block(first, count)))


def test_the_manifest_says_what_was_averaged(ensemble: Path, exported: Exported) -> None:
    manifest, members = Scorer.open(exported.folder).manifest, Ensemble.open(ensemble).members
    assert manifest == exported.manifest
    assert [(each.run_id, each.step, each.weights) for each in manifest.members] == [
        (each.run.files.run_id, each.step, each.weights) for each in members
    ]
    assert manifest.features == members[0].run.transform().schema.sparse
    assert manifest.feature_of["2/item"] == "item"
    widths = {entry.name: entry.dim for entry in manifest.tables}
    assert (widths["1/item"], widths["2/item"], widths["3/item"]) == (8, 16, 4)
    assert manifest.table_of["3/history"].name == "3/item"
    values = json.loads((exported.folder / "export.json").read_text())
    assert values["format_version"] == 2  # an earlier version, which knows features alone, refuses it
    found = api.evaluate(ensemble, "validation").compute()
    assert manifest.figures["validation"]["click/ne"] == found["click/ne"]


def test_a_server_predicts_and_ranks_with_the_same_bits(ensemble: Path, tmp_path: Path) -> None:
    names = [column.source for column in Ensemble.open(ensemble).transform().raw_schema(labelled=False).columns]
    log = log_columns()
    rows = [{name: log[name][number] for name in names} for number in range(30)]
    out = str(tmp_path / "out")
    with Predictor(ensemble) as predictor, running(ensemble, "--no-log", "--export-to", out) as server:
        expected = predictor.predict(rows)
        assert f"{ensemble}: exported its 3 members at fp32" in server.lines()
        found = server.client.post("/v1/predict", json={"rows": rows}).json()
        for number, name in enumerate(NAMES):
            np.testing.assert_array_equal(np.float32(found["predictions"][name]), expected[:, number])
        for shared in (["user", "age", "price", "history", "seen"], ["item"]):
            first = {name: rows[0][name] for name in shared}
            candidates = [{name: value for name, value in row.items() if name not in shared} for row in rows]
            found = server.client.post("/v1/rank", json={"context": first, "candidates": candidates}).json()
            whole = predictor.predict([{**row, **first} for row in rows])
            order = np.argsort(-whole[:, 0], kind="stable")
            assert found["candidates"] == order.tolist()
            for number, name in enumerate(NAMES):
                np.testing.assert_array_equal(np.float32(found["predictions"][name]), whole[order, number])


def test_what_an_ensemble_cannot_do_is_said(ensemble: Path, exported: Exported, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"checkpoint 'last': .* is an ensemble, which names the checkpoint"):
        export(ensemble, tmp_path / "new", checkpoint="last")
    with pytest.raises(ConfigError, match=r"is the export of an ensemble of 3 checkpoints; one run is followed"):
        open_followed(ensemble.with_name("run-0"), exported.manifest, exported.folder)
    write_log(tmp_path / "log.parquet", log_columns(seed=2))
    other = trained(tmp_path, EVERY_KIND, "other", data__labels=LABELLED)
    values = json.loads((ensemble / "ensemble.json").read_text())
    member = {**values["members"][1], "run": "../other", "run_id": other.files.run_id, "step": 3}
    (tmp_path / "mixed").mkdir()
    runs = [{**each, "run": f"../{(ensemble / each['run']).resolve().name}"} for each in values["members"]]
    for number in (0, 2):
        (tmp_path / f"run-{number}").symlink_to(ensemble.with_name(f"run-{number}"))
    mixed = sealed({**values, "members": [runs[0], member, runs[2]]})
    (tmp_path / "mixed" / "ensemble.json").write_text(json.dumps(mixed))
    with pytest.raises(RunFolderError, match=r"member 2 .*other, step 3\): trained on other prepared data"):
        export(tmp_path / "mixed", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda found: found["input_features"].pop("2/item"), "does not say which features its inputs are"),
        (lambda found: found.update(members=[]), "does not say which features its inputs are"),
        (lambda found: found.update(format_version=1), "format version 1 with 3 members"),
    ],
)
def test_a_forged_manifest_is_refused(change: Any, message: str, exported: Exported, tmp_path: Path) -> None:
    values = json.loads((exported.folder / "export.json").read_text())
    change(values)
    (tmp_path / "export.json").write_text(json.dumps(sealed(values)))
    with pytest.raises(DataError, match=message):
        type(exported.manifest).open(tmp_path)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of three runs on one dataset, of which `mean` pools a sequence that the others encode."""
    folder = tmp_path_factory.mktemp("small")
    seen: dict[str, Any] = {"name": "seen", "kind": "sequence", "type": "integer", "last": 4, "pooling": "mean"}
    encoded = [*PLAIN, {**seen, "pooling": {"name": "attention"}}]
    labels = {"data__labels": [LABELS["binary"], LABELS["ordinal"]]}
    runs = [trained(folder, encoded, "one", **labels), trained(folder, [*PLAIN, seen], "mean", **labels)]
    runs.append(trained(folder, encoded, "two", model={"name": "wukong", "layers": 1}, **labels))
    api.build_ensemble([runs[0], runs[2]], folder / "both", equal_weights=True)
    api.build_ensemble(runs[:2], folder / "mixed", equal_weights=True)
    return folder


def test_it_is_rounded_as_a_run_is(small: Path, tmp_path: Path) -> None:
    found = export(Ensemble.open(small / "mixed"), tmp_path / "out", precision="int8")
    assert 0 < found.manifest.deviation["largest_logit_difference"] < 0.1
    assert "validation/click/ne" in found.manifest.deviation


@pytest.mark.skipif(
    importlib.util.find_spec("onnxscript") is None, reason="needs onnxscript: pip install 'ziggurat[onnx]'"
)
def test_onnx(small: Path, tmp_path: Path) -> None:
    assert export_onnx(small / "both", tmp_path / "onnx").largest_difference <= TOLERANCE
    with pytest.raises(ConfigError, match="sequence 'seen': members of the ensemble take its ids in different forms"):
        export_onnx(small / "mixed", tmp_path / "other")

"""What an export says of its validation: scores, unknown ids, ranges and the training."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporting.export_kit import EVERY_KIND, LABELS, log_columns, trained
from ziggurat.core.errors import DataError
from ziggurat.core.sealed import sealed
from ziggurat.data.encoded.columns import Columns
from ziggurat.exporting.export import export
from ziggurat.exporting.exported_model import as_inputs
from ziggurat.exporting.reference import score_bins
from ziggurat.serving.artefact.manifest import MANIFEST_FILE, Manifest, StoredFile
from ziggurat.serving.artefact.reference import REFERENCE_FILE, Reference
from ziggurat.serving.drift.unknown_ids import unknown_rows
from ziggurat.serving.http.page.description import description
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.model.scorer import Scorer, predictions
from ziggurat.training.run_folder.run import Run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Path]:
    folder = tmp_path_factory.mktemp("reference")
    labels = [LABELS["binary"], LABELS["squared"], LABELS["ordinal"]]
    run = trained(folder, EVERY_KIND, data__labels=labels)
    return run, export(run, folder / "out").folder


def read(folder: Path) -> Reference:
    found = Reference.read(folder, Manifest.read(folder))
    assert found is not None
    return found


def test_scores_and_unknown_ids_are_those_of_the_validation(made: tuple[Run, Path]) -> None:
    run, folder = made
    found, scorer = read(folder), Scorer.open(folder)
    dataset = run.dataset()
    blocks = dataset.split("validation")
    columns = Columns([blocks.read(number) for number in range(len(blocks.sizes))], dataset.schema, labelled=False)
    inputs = as_inputs(scorer, columns.batch(np.arange(columns.rows)))
    scores = predictions(scorer.manifest, scorer.columns(inputs))[0]
    assert (found.split, found.rows) == ("validation", columns.rows)
    assert list(found.scores) == ["click", "watch", "rating"]
    for label, values in zip(found.scores, scores.T, strict=True):
        bins = found.scores[label]
        assert sum(bins.counts) == columns.rows
        assert bins.mean == pytest.approx(values.mean(), rel=1e-5)
        assert np.allclose(bins.edges, np.quantile(values, np.arange(1, 10) / 10), rtol=1e-5)
        assert max(bins.counts) - min(bins.counts) <= 2
    unknown = unknown_rows(scorer.transform)
    assert found.unknown_ids.keys() == unknown.keys() >= {"user", "item", "tags", "history"}
    for feature, counts in found.unknown_ids.items():
        ids = inputs.ids[feature].values
        assert counts.ids == len(ids)
        assert counts.unknown == sum(1 for each in ids.tolist() if each in unknown[feature])


def test_ranges_and_the_training(made: tuple[Run, Path]) -> None:
    run, folder = made
    found, log = read(folder), log_columns()
    assert {"age", "price", "stock"} <= found.numbers.keys()
    assert 0 <= found.numbers["stock"].least < found.numbers["stock"].median < found.numbers["stock"].greatest < 500
    assert found.numbers["age"].greatest in log["age"]
    assert found.training is not None
    assert found.training.steps == 3
    assert found.training.rows == {name: run.dataset().split(name).rows for name in ("train", "validation", "test")}
    assert found.training.finished_at is not None
    assert found.training.finished_at <= (folder / MANIFEST_FILE).stat().st_mtime


def test_equal_scores_have_fewer_bins() -> None:
    found = score_bins(np.array([0.5] * 90 + [0.25] * 10, np.float32))
    assert found is not None
    assert found.edges[-1] == 0.5
    assert sum(found.counts) == 100
    assert found.counts[-1] == 90
    assert score_bins(np.array([np.nan], np.float32)) is None
    constant = score_bins(np.full(7, 0.5, np.float32))
    assert constant is not None
    assert (constant.edges, constant.counts) == ((0.5,), (0, 7))


def changed(folder: Path, change: Any) -> None:
    """Changes the reference of an export, with all checksums."""
    values = json.loads((folder / REFERENCE_FILE).read_text())
    change(values)
    (folder / REFERENCE_FILE).write_text(json.dumps(sealed(values)))
    manifest = json.loads((folder / MANIFEST_FILE).read_text())
    stored = StoredFile.of(folder / REFERENCE_FILE)
    manifest["files"][REFERENCE_FILE] = {"bytes": stored.bytes, "xxh3_128": stored.xxh3_128, "sha256": stored.sha256}
    (folder / MANIFEST_FILE).write_text(json.dumps(sealed(manifest)))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values: values.update(format_version=2), "has format version 2, this ziggurat reads 1"),
        (lambda values: values["scores"]["click"]["edges"].reverse(), "no distribution of a label"),
        (lambda values: values["scores"]["click"]["counts"].append(1), "no distribution of a label"),
        (lambda values: values["scores"].update(other=values["scores"]["click"]), "no distribution of a label"),
        (lambda values: values["unknown_ids"]["user"].update(unknown=10**9), "unknown_ids of 'user'"),
        (lambda values: values.update(rows="many"), "rows: expected"),
        (lambda values: values.pop("split"), "lacks split"),
    ],
)
def test_a_forged_reference_is_refused(made: tuple[Run, Path], tmp_path: Path, change: Any, message: str) -> None:
    out = Path(shutil.copytree(made[1], tmp_path / "out"))
    changed(out, change)
    with pytest.raises(DataError, match=message) as error:
        ServedModel.open(out)
    assert str(out / REFERENCE_FILE) in error.value.problem


def test_an_export_of_an_earlier_version_is_read(made: tuple[Run, Path], tmp_path: Path) -> None:
    out = Path(shutil.copytree(made[1], tmp_path / "out"))
    (out / REFERENCE_FILE).unlink()
    manifest = json.loads((out / MANIFEST_FILE).read_text())
    del manifest["files"][REFERENCE_FILE]
    (out / MANIFEST_FILE).write_text(json.dumps(sealed(manifest)))
    model = ServedModel.open(out)
    assert model.reference is None
    found = description(model)
    assert (found["training"], found["validation"]) == (None, None)
    assert found["samples_are_real"]
    assert found["columns"][0]["words"]
    assert {each["name"] for each in found["columns"]} == set(found["samples"][0])

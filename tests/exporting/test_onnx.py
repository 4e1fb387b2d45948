"""An ONNX model predicts within 1e-5 of what its run predicts, for every kind of feature and label."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.exporting.export_kit import EVERY_KIND, LABELS, PLAIN, trained, with_pooling
from ziggurat.core.errors import ConfigError, DataError, EnvironmentMismatch
from ziggurat.data.encoded.columns import Columns
from ziggurat.exporting.onnx import write
from ziggurat.exporting.onnx.write import TOLERANCE, export_onnx, onnx_inputs, run_model
from ziggurat.features.transform import Transform
from ziggurat.serving.artefact.manifest import ONNX_FILE, Manifest
from ziggurat.training.run_folder.run import Run

MISSING = [name for name in ("onnx", "onnxruntime", "onnxscript") if importlib.util.find_spec(name) is None]
needs_onnx = pytest.mark.skipif(bool(MISSING), reason=f"needs {', '.join(MISSING)}: pip install 'ziggurat[onnx]'")


def predicted(run: Run, folder: Path, rows: Any) -> Any:
    dataset = run.dataset()
    sample = Columns([dataset.split("test").read(0)], dataset.schema, labelled=False)
    inputs = onnx_inputs(run.experiment.layout(dataset.schema), sample.batch(rows))
    return run_model(folder / ONNX_FILE, inputs)


@needs_onnx
def test_every_kind_of_feature_and_label(tmp_path: Path) -> None:
    features = with_pooling(EVERY_KIND, history={"name": "target_attention", "target": "item"})
    run = trained(tmp_path, features, data__labels=list(LABELS.values()), embeddings__numeric_bins=8)
    found = export_onnx(run, tmp_path / "onnx")
    assert found.largest_difference <= TOLERANCE
    assert found.sample_rows > 300
    whole = predicted(run, tmp_path / "onnx", np.arange(40))
    assert whole.shape == (40, len(LABELS))
    singly = np.concatenate([predicted(run, tmp_path / "onnx", np.array([row])) for row in range(5)])
    np.testing.assert_allclose(singly, whole[:5], rtol=1e-5, atol=1e-5)
    described = json.loads((tmp_path / "onnx" / "inputs.json").read_text())
    kinds = {each["name"]: each["kind"] for each in described["inputs"]}
    assert (kinds["dense"], kinds["user"], kinds["tags"], kinds["seen"]) == ("numbers", "id", "ids", "recent ids")
    assert described["predictions"] == [label["name"] for label in LABELS.values()]
    assert Transform.load(tmp_path / "onnx" / "encoders").schema == run.transform().schema
    with pytest.raises(DataError, match="an export for ONNX runtimes, which ziggurat does not serve"):
        Manifest.read(tmp_path / "onnx")


@needs_onnx
@pytest.mark.parametrize(
    ("features", "model"),
    [
        (PLAIN, {"name": "wukong", "layers": 1}),
        ([PLAIN[2]], {"name": "logistic_regression"}),
        (PLAIN[:2], {"name": "fm"}),
    ],
)
def test_models_on_numbers_or_ids_alone(features: Any, model: Any, tmp_path: Path) -> None:
    run = trained(tmp_path, features, model=model, training__precision="bf16")
    assert export_onnx(run, tmp_path / "onnx").largest_difference <= TOLERANCE


@needs_onnx
def test_large_weights_are_beside_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_LARGEST_FILE", 1_000)
    run = trained(tmp_path)
    export_onnx(run, tmp_path / "onnx")
    assert (tmp_path / "onnx" / "model.onnx.data").stat().st_size > 1_000
    assert math.isfinite(float(predicted(run, tmp_path / "onnx", np.arange(3)).sum()))


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write, "_NEEDED", ("numpy", "no_such_package"))
    with pytest.raises(EnvironmentMismatch, match=r"needs no_such_package, not installed here\n.*ziggurat\[onnx\]"):
        export_onnx("run", tmp_path / "onnx")


@needs_onnx
def test_tables_beyond_memory_are_refused(tmp_path: Path) -> None:
    encoder = {"name": "hash", "rows": 900}
    features = [{"name": name, "kind": "categorical", "encoder": encoder} for name in ("user", "city")]
    run = trained(
        tmp_path, features, training__batch_size=16, evaluation__batch_size=64,
        planning={"beyond_memory": {"memory": "20kB"}},
    )  # fmt: skip
    with pytest.raises(ConfigError, match="its rows are not in memory"):
        export_onnx(run, tmp_path / "onnx")
    assert not (tmp_path / "onnx").exists()

"""The same raw rows give the same probabilities with each model, whichever way they are asked for.

``test_http_parity`` holds every kind of feature and of label to this; here is each model, new ones too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
import torch
from tritonclient import http as triton

from tests.exporting.export_kit import LABELS, PLAIN, log_columns, make_experiment, write_log
from tests.models.model_cases import CONFIGS
from tests.serving.http_kit import arrow_stream, served_here
from ziggurat.exporting.export import export
from ziggurat.exporting.exported_model import ExportedModel
from ziggurat.serving.http.arrow_body import ARROW_STREAM
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.model.scorer import Scorer
from ziggurat.training import api
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.prediction.predictor import Predictor
from ziggurat.training.recommender import Recommender

MODELS = [name for name in CONFIGS if "-" not in name]  # the others are a model's further settings
CONTEXT = ("user", "age")
ROWS = 30


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a log, which the first model prepares."""
    folder = tmp_path_factory.mktemp("models")
    write_log(folder / "log.parquet", log_columns())
    return folder


@pytest.mark.parametrize("name", MODELS)
def test_every_way_gives_the_same_probabilities(name: str, log: Path) -> None:
    labels = [LABELS["binary"], LABELS["corrected"]]
    experiment = make_experiment(log, PLAIN, data__labels=labels).model_copy(update={"model": CONFIGS[name]})
    run = api.train(experiment, log / name, prepared=log / "prepared").run
    export(run, log / f"{name}.export")
    columns = log_columns(ROWS, seed=5)
    rows: list[dict[str, Any]] = [{each["name"]: columns[each["name"]][row] for each in PLAIN} for row in range(ROWS)]
    model = ServedModel(Scorer.open(log / f"{name}.export"))
    with Predictor(run) as predictor:
        expected = predictor.predict(rows)
        recommender, dataset = predictor.recommender, run.dataset()
        assert isinstance(recommender, Recommender)
        stands_in = ExportedModel(model.scorer, recommender)
        size = experiment.evaluation.batch_size
        evaluated = evaluate_split(stands_in, dataset.split("test"), dataset.schema, torch.device("cpu"), size)
    assert evaluated.compute() == api.evaluate(run).compute()
    with served_here(model) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as client:
        assert _json(client, rows).tobytes() == expected.tobytes()
        assert _arrow(client, rows).tobytes() == expected.tobytes()
        assert _v2(url, columns).tobytes() == expected.tobytes()
        singly = [_json(client, [row]) for row in rows]
        np.testing.assert_allclose(np.concatenate(singly), expected, rtol=0, atol=1e-6)
        context = {column: rows[0][column] for column in CONTEXT}
        candidates = [{"item": row["item"]} for row in rows]
        answer = client.post("/v1/rank", json={"context": context, "candidates": candidates}).raise_for_status().json()
        joined = _json(client, [{**context, **each} for each in candidates])
        np.testing.assert_allclose(answer["scores"], joined[answer["candidates"], 0], rtol=0, atol=1e-6)


def _json(client: httpx.Client, rows: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    found = client.post("/v1/predict", json={"rows": rows}).raise_for_status().json()["predictions"]
    return np.array([found["click"], found["buy"]], np.float32).T


def _arrow(client: httpx.Client, rows: list[dict[str, Any]]) -> np.ndarray[Any, Any]:
    headers = {"content-type": ARROW_STREAM, "accept": ARROW_STREAM}
    answer = client.post("/v1/predict", content=arrow_stream(pa.Table.from_pylist(rows)), headers=headers)
    table = pa.ipc.open_stream(answer.raise_for_status().content).read_all()
    return np.stack([table["click"].to_numpy(), table["buy"].to_numpy()], axis=1)


def _v2(url: str, columns: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Asks with tensors in binary data: numbers, with NaN for a missing one, and text, empty for a missing cell."""
    client: Any = triton.InferenceServerClient(url.removeprefix("http://"))
    tensors: list[Any] = []
    for name, kind in (("user", "BYTES"), ("item", "BYTES"), ("age", "FP64")):
        cells = columns[name]
        if kind == "FP64":
            tensor = np.array([np.nan if each is None else each for each in cells])
        else:
            tensor = np.array(["" if each is None else str(each) for each in cells], object)
        tensors.append(triton.InferInput(name, [ROWS], kind))
        tensors[-1].set_data_from_numpy(tensor, binary_data=True)
    try:
        found = client.infer("small", tensors)
    finally:
        client.close()
    return np.stack([found.as_numpy("click"), found.as_numpy("buy")], axis=1)

"""The same raw rows give the same bits with the run, its export, and its server in JSON, Arrow and v2.

Every kind of feature and of label is among them, with missing cells. That `evaluate` computes these bits too is held by
``test_export_parity``.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from tritonclient import http as triton

from tests.exporting.export_kit import EVERY_KIND, LABELS, log_columns, trained, with_pooling
from tests.serving.http_kit import Running, arrow_stream, running
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.data.readers.table_reader import read_table
from ziggurat.exporting.export import export
from ziggurat.serving.http.arrow_body import ARROW_STREAM
from ziggurat.serving.model.scorer import Scorer
from ziggurat.training.prediction.predictor import Predictor

ROWS = 60
NAMES = [label["name"] for label in LABELS.values()]
Predicted = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run and of its export."""
    root = tmp_path_factory.mktemp("parity")
    features = with_pooling(EVERY_KIND, history={"name": "target_attention", "target": "item"})
    run = trained(root, features, data__labels=list(LABELS.values()), training__batch_size=256)
    export(run, root / "export")
    return root


@pytest.fixture(scope="module")
def server(folder: Path) -> Generator[Running]:
    with running(folder / "export", "--no-log") as found:
        yield found


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[dict[str, Any]]:
    """Rows that training has not seen, with missing cells of each feature that has any."""
    names = Scorer.open(folder / "export").transform.raw_schema(labelled=False).columns
    log = log_columns(ROWS, seed=5)
    return [{name: log[name][row] for name in dict.fromkeys(each.source for each in names)} for row in range(ROWS)]


@pytest.fixture(scope="module")
def expected(folder: Path, rows: list[dict[str, Any]]) -> Predicted:
    with Predictor(folder / "run") as predictor:
        return predictor.predict(rows)


def test_the_export(folder: Path, rows: list[dict[str, Any]], expected: Predicted) -> None:
    scorer = Scorer.open(folder / "export")
    needed = scorer.transform.raw_schema(labelled=False)
    found = scorer.score(read_table(to_arrow(rows, needed), needed)).predictions_BT
    assert found.tobytes() == expected.tobytes()


def test_json(server: Running, rows: list[dict[str, Any]], expected: Predicted) -> None:
    found = server.client.post("/v1/predict", json={"rows": rows}).json()["predictions"]
    assert np.array([found[name] for name in NAMES], np.float32).T.tobytes() == expected.tobytes()


def test_a_context_and_its_candidates(server: Running, rows: list[dict[str, Any]]) -> None:
    """The pair of user and item is of both; age and price, of which one feature is made, may be in one or both."""
    context = {name: cell for name, cell in rows[0].items() if name in {"user", "city", "age", "price"}}
    candidates = [{name: cell for name, cell in row.items() if name not in context} for row in rows]
    joined = server.client.post("/v1/predict", json={"rows": [{**each, **context} for each in candidates]}).json()
    predicted = np.array(joined["predictions"][NAMES[0]])
    apart = {"context": {**context}, "candidates": [{**each, "price": context["price"]} for each in candidates]}
    del apart["context"]["price"]
    for asked in ({"context": context, "candidates": candidates}, apart):
        found = server.client.post("/v1/rank", json={**asked, "label": NAMES[0]}).json()
        np.testing.assert_allclose(found["scores"], predicted[found["candidates"]], rtol=1e-6)


def test_the_document_says_which_values_have_no_null(server: Running, rows: list[dict[str, Any]]) -> None:
    """An identity encoder has no row for a missing id, and a vector none for a missing number."""
    document = server.client.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]["requestBody"]["content"]
    properties = document["application/json"]["schema"]["properties"]["rows"]["items"]["properties"]
    assert properties["category"] == {"type": "integer", "minimum": 0, "maximum": 8}
    assert properties["emb"]["items"] == {"type": "number"}
    whole = next(row for row in rows if row["emb"] is not None)
    for changed in ({"category": None}, {"category": 9}, {"emb": [None, *whole["emb"][1:]]}):
        answer = server.client.post("/v1/predict", json={"rows": [{**whole, **changed}]})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_rows"), changed
    assert server.client.post("/v1/predict", json={"rows": [whole]}).status_code == 200


def test_arrow(server: Running, rows: list[dict[str, Any]], expected: Predicted) -> None:
    headers = {"content-type": ARROW_STREAM, "accept": ARROW_STREAM}
    content = arrow_stream(pa.Table.from_pylist(rows))
    answer = server.client.post("/v1/predict", content=content, headers=headers)
    found = pa.ipc.open_stream(answer.content).read_all()
    assert np.stack([found[name].to_numpy() for name in NAMES], axis=1).tobytes() == expected.tobytes()


@pytest.mark.parametrize("binary", [True, False])
def test_v2(server: Running, rows: list[dict[str, Any]], expected: Predicted, binary: bool) -> None:
    assert _inferred(server, rows, binary).tobytes() == expected.tobytes()


def test_v2_with_vectors_as_numbers(server: Running, rows: list[dict[str, Any]], folder: Path) -> None:
    whole = [row for row in rows if row["emb"] is not None]
    with Predictor(folder / "run") as predictor:
        assert _inferred(server, whole, True).tobytes() == predictor.predict(whole).tobytes()


def _inferred(server: Running, rows: list[dict[str, Any]], binary: bool) -> Predicted:
    client: Any = triton.InferenceServerClient(server.url.removeprefix("http://"))
    try:
        found = client.infer("small", [_tensor(name, rows, binary) for name in rows[0]])
    finally:
        client.close()
    return np.stack([found.as_numpy(name) for name in NAMES], axis=1)


def _tensor(name: str, rows: list[dict[str, Any]], binary: bool) -> Any:
    """Returns a column as a tensor: in binary data numbers with NaN for a missing one, and vectors as rows of numbers
    where none is missing; else text, which has lists as JSON and is empty where a cell is missing."""
    values = [row[name] for row in rows]
    if binary and all(isinstance(each, float | None) for each in values):
        tensor, kind = np.array([np.nan if each is None else each for each in values]), "FP64"
    elif binary and name == "emb" and None not in values:
        tensor, kind = np.array(values), "FP64"
    else:
        tensor, kind = np.array([_text(each) for each in values], object), "BYTES"
    found: Any = triton.InferInput(name, list(tensor.shape), kind)
    found.set_data_from_numpy(tensor, binary_data=binary)
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value)

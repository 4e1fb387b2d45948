"""Each way to say a deadline sets it, in its unit, and none exceeds the longest one."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from typing import Any

import httpx
import pytest

from tests.serving.http_kit import Exported, exported, served_here
from ziggurat.serving.http.batching.batcher import Answer, Batcher
from ziggurat.serving.http.limits import ServingLimits

LIMITS = ServingLimits(deadline_s=7.0, longest_deadline_s=40.0)


@pytest.fixture(scope="module")
def export() -> Exported:
    return exported()


@pytest.fixture(scope="module")
def url(export: Exported) -> Generator[str]:
    with served_here(export.model, LIMITS) as found:
        yield found


def tensors(row: dict[str, Any]) -> list[dict[str, Any]]:
    kinds = {"user": "BYTES", "item": "INT64", "age": "FP64", "tags": "BYTES", "history": "BYTES"}
    values = {name: json.dumps(value) if isinstance(value, list) else value for name, value in row.items()}
    return [{"name": name, "datatype": kinds[name], "shape": [1], "data": [each]} for name, each in values.items()]


@pytest.mark.parametrize(
    ("header", "of_body", "v2", "seconds"),
    [
        (None, None, None, 7.0),
        ("250", None, None, 0.25),
        ("250", 90_000, None, 0.25),
        (None, 1_500, None, 1.5),
        ("1e9", None, None, 40.0),
        (None, 1e9, None, 40.0),
        (None, None, 2_500_000, 2.5),
        (None, None, 10**12, 40.0),
        ("250", None, 2_500_000, 0.25),
    ],
)
def test_a_request_has_the_deadline_that_it_says(
    url: str,
    export: Exported,
    monkeypatch: pytest.MonkeyPatch,
    header: str | None,
    of_body: float | None,
    v2: int | None,
    seconds: float,
) -> None:
    deadlines: list[float] = []
    predict = Batcher.predict

    async def noted(self: Batcher, make: Any, rows: int, deadline: float, **options: Any) -> Answer:
        deadlines.append(deadline)
        return await predict(self, make, rows, time.monotonic() + 60, **options)

    monkeypatch.setattr(Batcher, "predict", noted)
    row = {**export.rows[0], "age": 3.5}
    headers = {} if header is None else {"X-Deadline-Ms": header}
    body: dict[str, Any] = {"rows": [row]}
    if of_body is not None:
        body["deadline_ms"] = of_body
    path = "/v1/predict"
    if v2 is not None:
        path, body = "/v2/models/small/infer", {"inputs": tensors(row), "parameters": {"timeout": v2}}
    before = time.monotonic()
    response = httpx.post(url + path, json=body, headers=headers, timeout=60, trust_env=False)
    after = time.monotonic()
    assert response.status_code == 200, response.text
    (deadline,) = deadlines
    assert before + seconds <= deadline <= after + seconds

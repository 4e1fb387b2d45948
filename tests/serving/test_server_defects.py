"""A defect of the server is JSON without a traceback on every path, and its place is logged."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pytest

import ziggurat.serving.http.admin_routes as admin
import ziggurat.serving.http.page.routes as page
import ziggurat.serving.http.predict_routes as predict
import ziggurat.serving.http.v2_routes as v2
from tests.serving.http_kit import exported, served_here
from ziggurat.serving.http.access_log import AccessLog

SECRET = "the value of a feature"


@pytest.mark.parametrize(
    ("module", "name", "method", "path"),
    [
        (page, "status", "GET", "/v1/status"),
        (v2, "_metadata", "GET", "/v2/models/small"),
        (v2, "_columns", "POST", "/v2/models/small/infer"),
        (admin, "words", "GET", "/admin/status"),
        (predict, "predict_body", "POST", "/v1/predict"),
    ],
)
def test_a_defect_is_json_and_logged(
    module: Any, name: str, method: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(module, name, fails)
    out = io.StringIO()
    with served_here(exported().model, log=AccessLog(out)) as url, httpx.Client(trust_env=False, timeout=60) as client:
        for _ in range(2):  # the connection goes on
            response = client.request(
                method, url + path, json={"rows": [{}], "inputs": []} if method == "POST" else None
            )
            assert response.status_code == 500
            assert response.headers["content-type"] == "application/json"
            found = response.json()
            assert found["code"] == "internal"
            assert response.headers["x-request-id"] in found["error"]
            assert "Traceback" not in response.text
            assert SECRET not in response.text
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    errors = [each for each in lines if each["event"] == "error"]
    assert [each["type"] for each in errors] == ["RuntimeError"] * 2
    assert all("fails" in each["at"][-1] for each in errors)
    assert [each["code"] for each in lines if each["event"] == "request"] == ["internal"] * 2
    assert SECRET not in out.getvalue()

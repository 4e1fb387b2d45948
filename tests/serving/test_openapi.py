"""Schemathesis over the OpenAPI document of a real server: what is documented is what happens, good and bad."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest

from tests.serving.http_kit import exported, running


def test_answers_are_those_of_the_document() -> None:
    pytest.importorskip("schemathesis", reason="needs schemathesis, as CI has it: requirements/dev.txt")
    from bench.serving.openapi_fuzz import fuzz

    with running(exported().folder, "--no-log") as server:
        port = urlsplit(server.url).port
        assert port is not None
        statuses, failures = fuzz(port, 6, name="small")
        assert not failures, failures[:3]
        assert {200, 404, 422} <= statuses.keys()
        assert "Traceback" not in server.lines()

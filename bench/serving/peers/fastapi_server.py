"""FastAPI around ONNX Runtime or eager PyTorch, as FastAPI's documentation advises.

Bodies and answers are pydantic models, endpoints are plain functions, which FastAPI runs in threads, and the server is
``uvicorn[standard]`` with uvloop and httptools. ``async`` runs the endpoints in the event loop instead, which saves the
change of threads and blocks the loop: ``python -m bench.serving.peers.fastapi_server FOLDER PORT onnx|torch [async]``.
"""

# FastAPI reads these annotations at run time, so that this file imports no annotations of the future.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUntypedFunctionDecorator=false, reportUnusedFunction=false

import sys
from pathlib import Path
from typing import Any

import fastapi
import pydantic
import uvicorn

from bench.serving.peers.encoding import Encoding
from bench.serving.peers.models import onnx_model, torch_model


class PredictRequest(pydantic.BaseModel):
    """Rows."""

    rows: list[dict[str, Any]]


class RankRequest(pydantic.BaseModel):
    """A context and its candidates."""

    context: dict[str, Any]
    candidates: list[dict[str, Any]]


class PredictAnswer(pydantic.BaseModel):
    """Predictions by label."""

    predictions: dict[str, list[float]]


class RankAnswer(pydantic.BaseModel):
    """Candidates, the best first."""

    candidates: list[int]
    scores: list[float]


def application(folder: Path, kind: str, is_async: bool) -> fastapi.FastAPI:
    """Returns the application."""
    encoding = Encoding(folder)
    inputs = ["dense", *(each["name"] for each in encoding.ids)]
    model = (onnx_model if kind == "onnx" else torch_model)(folder, inputs)
    app = fastapi.FastAPI()

    def predicted(request: PredictRequest) -> PredictAnswer:
        found = model(encoding.rows(request.rows))
        columns = {label: found[:, number].tolist() for number, label in enumerate(encoding.labels)}
        return PredictAnswer(predictions=columns)

    def ranked(request: RankRequest) -> RankAnswer:
        scores = model(encoding.ranked(request.context, request.candidates))[:, 0]
        order = (-scores).argsort(kind="stable")
        return RankAnswer(candidates=order.tolist(), scores=scores[order].tolist())

    if is_async:

        @app.post("/predict")
        async def predict_in_loop(request: PredictRequest) -> PredictAnswer:
            return predicted(request)

        @app.post("/rank")
        async def rank_in_loop(request: RankRequest) -> RankAnswer:
            return ranked(request)
    else:

        @app.post("/predict")
        def predict(request: PredictRequest) -> PredictAnswer:
            return predicted(request)

        @app.post("/rank")
        def rank(request: RankRequest) -> RankAnswer:
            return ranked(request)

    return app


if __name__ == "__main__":
    uvicorn.run(
        application(Path(sys.argv[1]), sys.argv[3], "async" in sys.argv[4:]),
        host="127.0.0.1",
        port=int(sys.argv[2]),
        access_log=False,
        log_level="warning",
    )

"""LitServe around ONNX Runtime, with its batching: ``python -m bench.serving.peers.litserve_server FOLDER PORT``."""

# LitServe takes the type of a body from the annotation of `decode_request`; without one it is any JSON object.
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportMissingParameterType=false

import sys
from pathlib import Path
from typing import Any

import litserve
import numpy as np

from bench.serving.peers.encoding import Encoding
from bench.serving.peers.models import onnx_model

_BATCH, _WAIT_S = 64, 0.002


class Predict(litserve.LitAPI):
    """Predicts the rows of up to 64 requests together."""

    def setup(self, device: str) -> None:
        folder = Path(sys.argv[1])
        self.encoding = Encoding(folder)
        self.model = onnx_model(folder, ["dense", *(each["name"] for each in self.encoding.ids)])

    def decode_request(self, request) -> list[dict[str, Any]]:
        return request["rows"]

    def batch(self, inputs: list[Any]) -> Any:
        self.sizes = [len(each) for each in inputs]
        return [row for each in inputs for row in each]

    def predict(self, rows: list[dict[str, Any]]) -> Any:
        return self.model(self.encoding.rows(rows))

    def unbatch(self, output: Any) -> Any:
        return np.split(output, np.cumsum(self.sizes)[:-1])

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {"predictions": {label: output[:, n].tolist() for n, label in enumerate(self.encoding.labels)}}


class Rank(litserve.LitAPI):
    """Ranks the candidates of a request."""

    def setup(self, device: str) -> None:
        folder = Path(sys.argv[1])
        self.encoding = Encoding(folder)
        self.model = onnx_model(folder, ["dense", *(each["name"] for each in self.encoding.ids)])

    def decode_request(self, request) -> Any:
        return self.encoding.ranked(request["context"], request["candidates"])

    def predict(self, arrays: Any) -> Any:
        return self.model(arrays)[:, 0]

    def encode_response(self, scores: Any) -> dict[str, Any]:
        order = (-scores).argsort(kind="stable")
        return {"candidates": order.tolist(), "scores": scores[order].tolist()}


if __name__ == "__main__":
    apis = [
        Predict(max_batch_size=_BATCH, batch_timeout=_WAIT_S, api_path="/predict"),
        Rank(api_path="/rank"),
    ]
    server = litserve.LitServer(apis, accelerator="cpu", workers_per_device=1, track_requests=False)
    server.run(host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False, log_level="warning")

"""The model of a folder, in ONNX Runtime and in eager PyTorch, on one thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.serving.peers.encoding import Arrays

Floats = npt.NDArray[np.float32]
Model = Callable[[Arrays], Floats]
"""Arrays by input -> predictions (B, T)."""


def onnx_model(folder: Path, inputs: Sequence[str]) -> Model:
    """Returns the model in ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    wanted = {each.name for each in session.get_inputs()} & set(inputs)

    def predict(arrays: Arrays) -> Floats:
        return np.asarray(session.run(["predictions"], {name: arrays[name] for name in wanted})[0])

    return predict


def torch_model(folder: Path, inputs: Sequence[str]) -> Model:
    """Returns the model in eager PyTorch: its operators one by one, without the checks of torch.export."""
    import torch

    torch.set_num_threads(1)
    module = torch.export.load(folder / "model.pt2").module(check_guards=False)
    module._forward_pre_hooks.clear()  # pyright: ignore[reportPrivateUsage] - torch.export adds them so

    @torch.inference_mode()
    def predict(arrays: Arrays) -> Floats:
        return module(*(torch.from_numpy(arrays[source]) for source in inputs)).numpy()

    return predict

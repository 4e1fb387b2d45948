"""A model that torch.compile compiles, and that runs uncompiled where the compiler fails."""

from __future__ import annotations

import warnings

import torch
import torch._functorch.config as functorch_config
from torch import Tensor, nn
from torch._dynamo.exc import TorchDynamoException

from ziggurat.core.engine import cpp_compiler


class CompiledModel:
    """Calls a model's compiled form; if that cannot be made, warns once with the reason and calls the model itself.

    Each new kind of input is compiled at its first call, forward and backward pass together, so that a failure of
    either is known before anything was computed.

    Args:
        model: the model.
    """

    def __init__(self, model: nn.Module) -> None:
        functorch_config.force_non_lazy_backward_lowering = True
        self._model = model
        self._call = torch.compile(model)

    def __call__(self, dense_BF: Tensor, emb_BFD: Tensor) -> Tensor:
        try:
            return self._call(dense_BF, emb_BFD)
        except TorchDynamoException as error:
            self._call = self._model
            reason = next((line for line in str(error).splitlines() if line.strip()), "no message")
            hint = "" if cpp_compiler() else " No C++ compiler is installed (g++ or clang++)."
            warnings.warn(
                f"training.compile: torch.compile failed ({type(error).__name__}: {reason}).{hint} The model runs "
                "uncompiled; training.compile: false says so in the config",
                RuntimeWarning,
                stacklevel=2,
            )
            return self._model(dense_BF, emb_BFD)

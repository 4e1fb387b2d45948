"""Random numbers that one thread draws without touching torch's global generators.

All threads of a process share those generators. While a training draws its dropout from them, another thread that seeds
them, or draws the initial weights of a model, would change what the training draws next.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import init
from torch.overrides import TorchFunctionMode

_IN_PLACE = (
    "bernoulli_",
    "cauchy_",
    "exponential_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
)
_FUNCTIONS = ("bernoulli", "multinomial", "normal", "poisson", "rand", "randint", "randn", "randperm")
_INITIALISERS = (
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
)
_DRAWING = frozenset[Any](
    [getattr(Tensor, name) for name in (*_IN_PLACE, "bernoulli", "multinomial")]
    + [getattr(torch, name) for name in _FUNCTIONS]
    + [getattr(init, name) for name in _INITIALISERS]
)
"""The functions that draw from the generator that they are given, else from a global one."""

_LIKE: dict[Any, Callable[[Tensor, torch.Generator], Tensor]] = {
    torch.rand_like: lambda tensor, generator: tensor.uniform_(generator=generator),
    torch.randn_like: lambda tensor, generator: tensor.normal_(generator=generator),
}
"""Functions that draw from the global generator only, and how the tensors that they make are filled."""


class OwnRandom(TorchFunctionMode):
    """Lets this thread draw from generators of its own within the context, one for each device.

    They give the numbers that the global generators would give after ``torch.manual_seed(seed)``. Functions that take
    no generator, such as ``torch.nn.functional.dropout``, draw from the global ones as ever.

    Args:
        seed: the seed of the generators.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _LIKE:
            made = torch.empty_like(*args, **kwargs)
            return _LIKE[func](made, self._generator(made.device))
        if func in _DRAWING and kwargs.get("generator") is None:
            kwargs = {**kwargs, "generator": self._generator(_device(args, kwargs))}
        return func(*args, **kwargs)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device.type == "meta":  # there is nothing to draw; any generator is accepted
            device = torch.device("cpu")
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _device(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Returns the device of the tensor that is filled, or on which one is made."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor):
            return value.device
    wanted = kwargs.get("device")
    return torch.get_default_device() if wanted is None else torch.device(wanted)


@contextlib.contextmanager
def preserved_random_state(device: torch.device) -> Generator[None]:
    """Gives the global generators of torch, numpy and Python back as they were, however the context ends.

    Args:
        device: the device whose generator of torch is preserved in addition to that of the CPU.
    """
    python_state, numpy_state, torch_state = random.getstate(), np.random.get_state(), torch.get_rng_state()
    cuda_state = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_state is not None:
            torch.cuda.set_rng_state(cuda_state, device)

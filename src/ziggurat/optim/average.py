"""The exponential moving average of the weights: used for evaluation and prediction, while training continues from the
last weights.

a_t = Σ_s d^(t−s) w_s / Σ_s d^(t−s) over the steps s = 1 … t, that is a ← a + (1 − d)/(1 − d^t) (w − a). The initial
weights do not contribute.

Sources: Polyak & Juditsky 1992 for averaging; Kingma & Ba 2015, section 3, for the bias correction (Adam's).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Mapping

import torch
from torch import Tensor


class WeightAverage:
    """Keeps a moving average of each of some live tensors.

    Args:
        live: name -> tensor; the averages start as copies of these.
        decay: in (0, 1); the average covers about 1 / (1 − decay) steps.
        copied: names of tensors that are copied instead of averaged, such as integers.
    """

    def __init__(self, live: Mapping[str, Tensor], decay: float, copied: Collection[str] = ()) -> None:
        self.decay = decay
        self._live = {name: tensor.detach() for name, tensor in live.items()}
        self.averages = {name: tensor.clone() for name, tensor in self._live.items()}
        self._copied = tuple(name for name in self._live if name in copied)
        self._averaged = tuple(name for name in self._live if name not in copied)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Updates the averages with the weights after step ``step``, counted from 1."""
        share = (1 - self.decay) / (1 - self.decay**step)
        averages, live = ([tensors[name] for name in self._averaged] for tensors in (self.averages, self._live))
        if averages:
            torch._foreach_lerp_(averages, live, share)  # pyright: ignore[reportPrivateUsage] - torch's own optimizers use it
        for name in self._copied:
            self.averages[name].copy_(self._live[name])

    @contextlib.contextmanager
    def in_use(self) -> Generator[None]:
        """Puts the averages into the live tensors within the context."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, live in self._live.items():
            saved = live.clone()
            live.copy_(self.averages[name])
            self.averages[name].copy_(saved)

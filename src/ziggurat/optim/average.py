"""The exponential moving average of the weights: a run is judged and used by it, while training goes on from the last.

a_t = Σ_s d^(t−s) w_s / Σ_s d^(t−s) over the steps s = 1 … t, that is a ← a + (1 − d)/(1 − d^t) (w − a): the initial
weights have no part in it.

Source: Polyak & Juditsky 1992 for averaging; the correction for a short past is Adam's (Kingma & Ba 2015, section 3).
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Mapping

import torch
from torch import Tensor


class WeightAverage:
    """Averages of live tensors, one each.

    Args:
        live: by name; they start as their own averages.
        decay: in (0, 1); about 1 / (1 − decay) steps are remembered.
        copied: names of tensors that are not averaged but kept as they are last, integers among them.
    """

    def __init__(self, live: Mapping[str, Tensor], decay: float, copied: Collection[str] = ()) -> None:
        self.decay = decay
        self._live = {name: tensor.detach() for name, tensor in live.items()}
        self.averages = {name: tensor.clone() for name, tensor in self._live.items()}
        self._copied = tuple(name for name in self._live if name in copied)
        self._averaged = tuple(name for name in self._live if name not in copied)

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after step ``step``, counted from 1."""
        share = (1 - self.decay) / (1 - self.decay**step)
        averages, live = ([tensors[name] for name in self._averaged] for tensors in (self.averages, self._live))
        if averages:
            torch._foreach_lerp_(averages, live, share)  # pyright: ignore[reportPrivateUsage] - torch's own optimizers use it
        for name in self._copied:
            self.averages[name].copy_(self._live[name])

    @contextlib.contextmanager
    def in_use(self) -> Generator[None]:
        """The averages stand in the live tensors' place for the duration."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        for name, live in self._live.items():
            kept = live.clone()
            live.copy_(self.averages[name])
            self.averages[name].copy_(kept)

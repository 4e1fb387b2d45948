"""A recommender's averaged weights, with batch norms that fit them.

The running statistics of a batch norm belong to the weights before it. The statistics for averaged weights are not the
average of the statistics: weights that wander average to shorter ones, whose outputs vary less. So the statistics are
measured again on some training rows before the average is used (Izmailov et al. 2018, "Averaging Weights Leads to Wider
Optima", section 3.2). These rows pass without dropout, as in evaluation.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import replace

import torch
from torch import Tensor, nn

from ziggurat.core.batch import Batch
from ziggurat.optim.average import WeightAverage
from ziggurat.parallel.tensor_slices import TensorSlice, fill
from ziggurat.training.recommender import Recommender

NORM_BATCHES = 16
"""Training batches on which the batch norms of the average are measured."""


class AveragedWeights:
    """The exponential moving average of all weights of a recommender.

    Args:
        recommender: the recommender, on its device.
        decay: decay of the average per step.
        batches: returns the training batches on which batch norms are measured; it must always return the same ones.
    """

    def __init__(self, recommender: Recommender, decay: float, batches: Callable[[], Iterable[Batch]]) -> None:
        self._recommender, self._batches = recommender, batches
        self._norms = [module for module in recommender.modules() if isinstance(module, nn.BatchNorm1d)]
        trained = {f"dense/{name}" for name in recommender.dense_parameters()}
        tensor_slices = recommender.tensor_slices()
        copied = {
            tensor_slice.key
            for tensor_slice in tensor_slices
            if tensor_slice.name.startswith("dense/") and tensor_slice.name not in trained
        }
        self._average = WeightAverage(
            {tensor_slice.key: tensor_slice.tensor for tensor_slice in tensor_slices}, decay, copied
        )
        self._measured = False

    @property
    def tensor_slices(self) -> list[TensorSlice]:
        """The averages that a checkpoint stores, as they are used: ``dense/NAME`` and ``tables/NAME``."""
        if not self._measured:
            with self.in_use():
                pass
        return self._averaged_slices()

    def update(self, step: int) -> None:
        """Adds the weights after step ``step``, counted from 1, to the average."""
        self._average.update(step)
        self._measured = False

    @contextlib.contextmanager
    def in_use(self) -> Generator[None]:
        """Gives the recommender the averaged weights within the context."""
        with self._average.in_use():
            if not self._measured:
                self._measure()
                self._measured = True
            yield

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restores the averages from a checkpoint's tensors."""
        fill(self._averaged_slices(), tensors)
        self._measured = True

    def _averaged_slices(self) -> list[TensorSlice]:
        averages = self._average.averages
        live = self._recommender.tensor_slices()
        return [replace(tensor_slice, tensor=averages[tensor_slice.key]) for tensor_slice in live]

    @torch.no_grad()
    def _measure(self) -> None:
        if not self._norms:
            return
        training, momenta = self._recommender.training, [norm.momentum for norm in self._norms]
        self._recommender.eval()
        for norm in self._norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over batches
            norm.train()
        for batch in self._batches():
            self._recommender(batch)
        for norm, momentum in zip(self._norms, momenta, strict=True):
            norm.momentum = momentum
        self._recommender.train(training)

"""A recommender's averaged weights, with batch norms that fit them.

The running statistics of a batch norm belong to the weights before it. Those of averaged weights are not the average of
the statistics – weights that wander average to shorter ones, whose outputs vary less – so they are measured anew on
some training rows before the average is used (Izmailov et al. 2018, "Averaging Weights Leads to Wider Optima", section
3.2). Rows pass without dropout then, as they will in evaluation.
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
    """The moving average of all weights of a recommender.

    Args:
        recommender: on its device.
        decay: of the average.
        batches: makes the training batches on which batch norms are measured, always the same ones.
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
        """What a checkpoint keeps: ``dense/NAME`` and ``tables/NAME``, as they are used."""
        if not self._measured:
            with self.in_use():
                pass
        return self._pieces()

    def update(self, step: int) -> None:
        """Take in the weights after step ``step``, counted from 1."""
        self._average.update(step)
        self._measured = False

    @contextlib.contextmanager
    def in_use(self) -> Generator[None]:
        """The recommender has the averaged weights for the duration."""
        with self._average.in_use():
            if not self._measured:
                self._measure()
                self._measured = True
            yield

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a checkpoint's."""
        fill(self._pieces(), tensors)
        self._measured = True

    def _pieces(self) -> list[TensorSlice]:
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

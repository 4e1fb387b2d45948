"""A parameter that Shampoo trains: its blocks, its gradient of all ranks together, and how it takes a step."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from ziggurat.core.errors import ConfigError
from ziggurat.optim.shampoo.block_batch import BlockBatch, diverged
from ziggurat.optim.shampoo.blocks import MatrixBlock, blocks, merged


@dataclass(slots=True)
class Parameter:
    """A parameter and its blocks.

    Attributes:
        name: for messages.
        tensor: itself.
        group: number of its group.
        is_turned: whether there is more to its steps than the graft's.
        size: its shape.
        shape: with dimensions merged.
        blocks: of that.
        cuts: of each block its shape, and where it lies in a contiguous whole: strides, and its first number.
        places: number of a block of this rank -> its stack, and its place there.
        step: steps taken, a state.
    """

    name: str
    tensor: Tensor
    group: int
    is_turned: bool
    size: torch.Size
    shape: tuple[int, ...]
    blocks: list[MatrixBlock]
    cuts: list[tuple[tuple[int, ...], tuple[int, ...], int]]
    places: dict[int, tuple[BlockBatch, int]] = field(default_factory=dict[int, tuple[BlockBatch, int]])
    step: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float32))

    @classmethod
    def of(cls, name: str, tensor: Tensor, group: int, most: int, is_turned: bool) -> Parameter:
        """Of a tensor whose blocks are of up to ``most`` numbers in each dimension; one that takes the graft's steps
        alone is one block.

        Raises:
            ConfigError: its numbers are not floating-point ones of 16 bits or more, or those of several parameters that
                FSDP1 flattened.
        """
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ConfigError(
                f"shampoo: parameter {name!r} is {tensor.dtype}; what is optimized are floating-point numbers of 16 "
                "bits or more"
            )
        if getattr(tensor, "_is_flat_param", False):
            raise ConfigError(
                f"shampoo: parameter {name!r} is several that FullyShardedDataParallel made one, and another part of "
                "them on each rank",
                "use torch.distributed.fsdp.fully_shard",
            )
        most = most if is_turned else max(most, tensor.numel())
        shape = merged(tensor.shape, most)
        strides = tuple(math.prod(shape[number + 1 :]) for number in range(len(shape)))
        found = blocks(shape, most)
        cuts = [(each.shape, strides, sum(map(operator.mul, each.first, strides))) for each in found]
        return cls(name, tensor, group, is_turned, tensor.shape, shape, found, cuts)

    @property
    def dtype(self) -> torch.dtype:
        """Of its state: at least fp32."""
        return torch.float32 if self.tensor.dtype.itemsize < 4 else self.tensor.dtype

    @property
    def like(self) -> Tensor:
        """Of the type and on the device of its state."""
        return torch.empty(0, dtype=self.dtype, device=self.tensor.device)

    def told(self, number: int) -> str:
        """A block, for messages."""
        if len(self.blocks) == 1:
            return f"parameter {self.name!r}"
        block = self.blocks[number]
        ranges = ", ".join(f"{first}:{first + size}" for first, size in zip(block.first, block.shape, strict=True))
        return f"parameter {self.name!r}, block [{ranges}]"

    @property
    def is_one(self) -> bool:
        """Whether it is one block, of its own shape."""
        return len(self.blocks) == 1 and self.blocks[0].shape == self.size

    def check(self, whole: Tensor) -> None:
        """Raises a ConfigError where a tensor has another shape than this had when the optimizer was made."""
        if whole.shape != self.size:
            raise ConfigError(
                f"shampoo: parameter {self.name!r} is {tuple(whole.shape)} now and was {tuple(self.size)} when the "
                "optimizer was made",
                "make a new optimizer for parameters of new shapes",
            )

    def views(self, whole: Tensor) -> list[Tensor]:
        """Of a tensor of the parameter's shape, each block.

        Raises:
            ConfigError: it has another.
        """
        self.check(whole)
        whole = whole.contiguous()
        if self.is_one:
            return [whole]
        begin = whole.storage_offset()
        return [whole.as_strided(shape, strides, begin + first) for shape, strides, first in self.cuts]

    def gradient(self) -> Tensor:
        """Of this rank, which there is.

        Raises:
            ConfigError: it is sparse.
        """
        gradient = self.tensor.grad
        assert gradient is not None
        if gradient.is_sparse:
            raise ConfigError(
                f"shampoo: the gradient of parameter {self.name!r} is sparse", "train embeddings by a row optimizer"
            )
        return gradient

    @property
    def is_viewed(self) -> bool:
        """Whether :meth:`views` of it are views: it lies whole on this rank, and in the order of its dimensions."""
        return not isinstance(self.tensor, DTensor) and self.tensor.is_contiguous()

    def subtract(self, updates: Sequence[tuple[int, Tensor]], lr: float) -> None:
        """Take a step by (number, update) of all blocks, wherever and however it lies."""
        tensor, whole = self.tensor, self.like.new_zeros(self.tensor.shape)
        views = self.views(whole)
        for number, update in updates:
            views[number].copy_(update)
        if isinstance(tensor, DTensor):
            local = tensor.to_local()
            _, first = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
            for dimension, (begin, size) in enumerate(zip(first, local.shape, strict=True)):
                whole = whole.narrow(dimension, begin, size)
            tensor = local
        if tensor.numel():
            tensor.add_(whole, alpha=-lr)


def wholes(parameters: Sequence[Parameter]) -> list[list[Tensor]]:
    """Blocks of parameters, of all ranks together, which call it together where these are spread over them."""
    return _viewed(parameters, [each.tensor for each in parameters])


def whole_gradients(parameters: Sequence[Parameter]) -> list[list[Tensor]]:
    """As :func:`wholes`, of their gradients, which there are.

    Raises:
        ConfigError: one of them is sparse.
    """
    return _viewed(parameters, [each.gradient() for each in parameters])


def check_finite(parameters: Sequence[Parameter], gradients: Sequence[Sequence[Tensor]]) -> None:
    """Raises a DivergedError that names the first of the parameters' blocks whose gradient, or its square, is not
    finite."""
    blocks = [block for each in gradients for block in each]
    if not blocks:
        return
    largest = torch._foreach_norm(blocks, float("inf"))  # pyright: ignore[reportPrivateUsage] - no public name
    limit = math.sqrt(min(torch.finfo(each.dtype).max for each in parameters))
    if (torch.stack([each.double() for each in largest]) < limit).all():
        return
    for parameter, each in zip(parameters, gradients, strict=True):
        for number, block in enumerate(each):
            if not block.isfinite().all():
                raise diverged(parameter.told(number), "gradient")
            if not block.to(parameter.dtype).square().isfinite().all():
                raise diverged(parameter.told(number), "squared gradient")


def _viewed(parameters: Sequence[Parameter], tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    every = [each.full_tensor() if isinstance(each, DTensor) else each for each in tensors]
    return [parameter.views(whole) for parameter, whole in zip(parameters, every, strict=True)]

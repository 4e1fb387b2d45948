"""A parameter that Shampoo trains: its blocks, its gradient gathered from all ranks, and its update."""

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
from ziggurat.optim.shampoo.block_batch import BlockBatch, divergence_error
from ziggurat.optim.shampoo.blocks import MatrixBlock, blocks, merged


@dataclass(slots=True)
class Parameter:
    """A parameter and its blocks.

    Attributes:
        name: its name, for messages.
        tensor: the parameter itself.
        group: number of its group.
        is_preconditioned: whether it is preconditioned; else its steps are the graft's alone.
        size: its shape.
        shape: its shape with dimensions merged.
        blocks: the blocks of the merged shape.
        cuts: for each block its shape, strides and offset in the contiguous whole tensor.
        locations: number of a block of this rank -> its batch, and its place there.
        step: number of steps taken, a state.
    """

    name: str
    tensor: Tensor
    group: int
    is_preconditioned: bool
    size: torch.Size
    shape: tuple[int, ...]
    blocks: list[MatrixBlock]
    cuts: list[tuple[tuple[int, ...], tuple[int, ...], int]]
    locations: dict[int, tuple[BlockBatch, int]] = field(default_factory=dict[int, tuple[BlockBatch, int]])
    step: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.float32))

    @classmethod
    def of(cls, name: str, tensor: Tensor, group: int, max_dim: int, is_preconditioned: bool) -> Parameter:
        """Returns the parameter for a tensor, cut into blocks of up to ``max_dim`` in each dimension.

        A tensor that is not preconditioned is one block.

        Raises:
            ConfigError: the tensor's dtype is not floating-point with 16 bits or more, or FSDP1 has flattened several
                parameters into it.
        """
        if not tensor.is_floating_point() or tensor.dtype.itemsize < 2:
            raise ConfigError(
                f"shampoo: parameter {name!r} is {tensor.dtype}; only floating-point numbers of 16 bits or more can be "
                "optimized"
            )
        if getattr(tensor, "_is_flat_param", False):
            raise ConfigError(
                f"shampoo: parameter {name!r} was flattened by FullyShardedDataParallel from several parameters, of "
                "which each rank has another part",
                "use torch.distributed.fsdp.fully_shard",
            )
        max_dim = max_dim if is_preconditioned else max(max_dim, tensor.numel())
        shape = merged(tensor.shape, max_dim)
        strides = tuple(math.prod(shape[number + 1 :]) for number in range(len(shape)))
        found = blocks(shape, max_dim)
        cuts = [(each.shape, strides, sum(map(operator.mul, each.first, strides))) for each in found]
        return cls(name, tensor, group, is_preconditioned, tensor.shape, shape, found, cuts)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of its state: at least fp32."""
        return torch.float32 if self.tensor.dtype.itemsize < 4 else self.tensor.dtype

    @property
    def like(self) -> Tensor:
        """An empty tensor with the dtype and device of its state."""
        return torch.empty(0, dtype=self.dtype, device=self.tensor.device)

    def block_name(self, number: int) -> str:
        """Returns the name of a block, for messages."""
        if len(self.blocks) == 1:
            return f"parameter {self.name!r}"
        block = self.blocks[number]
        ranges = ", ".join(f"{first}:{first + size}" for first, size in zip(block.first, block.shape, strict=True))
        return f"parameter {self.name!r}, block [{ranges}]"

    @property
    def is_single_block(self) -> bool:
        """Whether it is a single block with the parameter's shape."""
        return len(self.blocks) == 1 and self.blocks[0].shape == self.size

    def check(self, whole: Tensor) -> None:
        """Validates that a tensor has the shape that the parameter had when the optimizer was made.

        Raises:
            ConfigError: it has another shape.
        """
        if whole.shape != self.size:
            raise ConfigError(
                f"shampoo: parameter {self.name!r} is {tuple(whole.shape)} now and was {tuple(self.size)} when the "
                "optimizer was made",
                "make a new optimizer for parameters of new shapes",
            )

    def views(self, whole: Tensor) -> list[Tensor]:
        """Returns each block of a tensor that has the parameter's shape.

        Raises:
            ConfigError: it has another shape.
        """
        self.check(whole)
        whole = whole.contiguous()
        if self.is_single_block:
            return [whole]
        begin = whole.storage_offset()
        return [whole.as_strided(shape, strides, begin + first) for shape, strides, first in self.cuts]

    def gradient(self) -> Tensor:
        """Returns this rank's gradient, which must exist.

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
    def has_views(self) -> bool:
        """Whether :meth:`views` returns views of the parameter: this rank holds all of it, and it is contiguous."""
        return not isinstance(self.tensor, DTensor) and self.tensor.is_contiguous()

    def subtract(self, updates: Sequence[tuple[int, Tensor]], lr: float) -> None:
        """Subtracts lr times the updates, given as (number of block, update) for all blocks, for any memory layout."""
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


def full_blocks(parameters: Sequence[Parameter]) -> list[list[Tensor]]:
    """Returns the blocks of each parameter, gathered from all ranks.

    If the parameters are sharded over ranks, all of these must call it together.
    """
    return _full_views(parameters, [each.tensor for each in parameters])


def full_gradient_blocks(parameters: Sequence[Parameter]) -> list[list[Tensor]]:
    """Returns the same as :func:`full_blocks` for the parameters' gradients, which must exist.

    Raises:
        ConfigError: one of them is sparse.
    """
    return _full_views(parameters, [each.gradient() for each in parameters])


def check_finite(parameters: Sequence[Parameter], gradients: Sequence[Sequence[Tensor]]) -> None:
    """Validates that the gradients of the parameters, and their squares, are finite.

    Raises:
        DivergedError: naming the first block for which they are not.
    """
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
                raise divergence_error(parameter.block_name(number), "gradient")
            if not block.to(parameter.dtype).square().isfinite().all():
                raise divergence_error(parameter.block_name(number), "squared gradient")


def _full_views(parameters: Sequence[Parameter], tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    every = [each.full_tensor() if isinstance(each, DTensor) else each for each in tensors]
    return [parameter.views(whole) for parameter, whole in zip(parameters, every, strict=True)]

"""Inputs of a program with drawn numbers, for compiling and comparing it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

if TYPE_CHECKING:
    from torch.export import ExportedProgram


def example_inputs(program: ExportedProgram, size: int, seed: int = 0) -> tuple[Any, ...]:
    """Returns the arguments of a program for ``size`` rows.

    Numbers are drawn from a normal distribution with a deviation of .1, near that of rows; in the masks of sequences
    the first half of the positions is taken.

    Args:
        program: the program; the first size of each input is the number of rows.
        size: the number of rows.
        seed: of the numbers.
    """
    draw = torch.Generator().manual_seed(seed)
    names = set(program.graph_signature.user_inputs)
    found: list[Tensor] = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in names:
            shape = [size, *(int(each) for each in node.meta["val"].shape[1:])]
            found.append(_drawn(shape, node.meta["val"].dtype, draw))
    arguments, _ = pytree.tree_unflatten(found, program.call_spec.in_spec)  # pyright: ignore[reportArgumentType]
    return tuple(arguments)


def _drawn(shape: list[int], dtype: torch.dtype, draw: torch.Generator) -> Tensor:
    if dtype == torch.bool:
        mask = torch.zeros(shape, dtype=torch.bool)
        mask[..., : (shape[-1] + 1) // 2] = True
        return mask
    return torch.randn(shape, generator=draw).mul(0.1).to(dtype)

"""Counts the FLOPs of a module's matrix products while rows pass through it, for modules that do not state them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from ziggurat.core.errors import ZigguratError
from ziggurat.core.outside.failures import described

_FEW, _MORE = 2, 4
"""Batch sizes of two passes; FLOPs per row are their difference divided by the extra rows."""


class FlopsUnknown(ZigguratError):
    """A module whose FLOPs are neither stated nor can be counted."""


def counted_flops(module: nn.Module, example: Callable[[int, torch.device], Sequence[Tensor]]) -> int:
    """Returns the FLOPs of the matrix products of a forward pass, per row, by torch's ``FlopCounterMode``.

    They are 0 if there is no product that torch counts. The module passes rows through as in evaluation, on its own
    device, which may be ``meta``.

    Args:
        module: the module.
        example: (number of rows, device) -> inputs of ``forward``.

    Raises:
        FlopsUnknown: the forward pass fails, for example because an operation has no kernel for ``meta``.
    """
    tensors = (*module.parameters(), *module.buffers())
    device = tensors[0].device if tensors else torch.device("cpu")
    modes = {each: each.training for each in module.modules()}
    module.eval()
    try:
        few, more = (_flops(module, example(rows, device)) for rows in (_FEW, _MORE))
    except Exception as error:
        raise FlopsUnknown(
            f"the FLOPs of {type(module).__qualname__} cannot be counted on the device {device}: {described(error)}",
            "define flops() for a model, matmul_flops() for a block",
        ) from error
    finally:
        for each, training in modes.items():
            each.training = training
    return (more - few) // (_MORE - _FEW)


def _flops(module: nn.Module, inputs: Sequence[Tensor]) -> int:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        module(*inputs)
    return counter.get_total_flops()

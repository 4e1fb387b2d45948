"""Takes from a loaded graph what only checks or wraps: what is left computes the same bits in half the time.

``torch.export`` checks the sizes of all inputs with symbolic arithmetic, asserts the type of intermediate results, and
calls each region of one precision through its tracer. Whoever calls a served model has made its inputs, so the checks
find nothing; for a single row they take longer than the model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload

_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")


def without_checks(module: fx.GraphModule) -> fx.GraphModule:
    """Returns the module, changed in place; it must be called without gradients."""
    module._forward_pre_hooks.clear()  # pyright: ignore[reportPrivateUsage] - torch.export adds them so
    _simplify(module)
    return module


def _simplify(module: fx.GraphModule) -> None:
    for child in module.children():
        if isinstance(child, fx.GraphModule):
            _simplify(child)
    for node in list(module.graph.nodes):
        if node.op != "call_function":
            continue
        if isinstance(node.target, OpOverload) and node.target.name().partition("::")[2].startswith(_CHECKS):
            module.graph.erase_node(node)
        elif isinstance(node.target, HigherOrderOperator):
            node.target = _REGIONS[node.target.name()]
    module.graph.eliminate_dead_code()
    module.recompile()


def _with_autocast(
    device: str, dtype: torch.dtype | None, enabled: bool, cache: bool | None, body: Any, *arguments: Any
) -> Any:
    if not enabled and not torch.is_autocast_enabled(device):
        return body(*arguments)
    with torch.autocast(device, dtype, enabled, cache):
        return body(*arguments)


def _with_gradients(enabled: bool, body: Any, *arguments: Any) -> Any:
    if not enabled:
        return body(*arguments)
    with torch.set_grad_enabled(enabled):
        return body(*arguments)


_REGIONS = {"wrap_with_autocast": _with_autocast, "wrap_with_set_grad_enabled": _with_gradients}

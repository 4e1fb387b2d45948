"""A graph with other weights, which shares all else with the graph that it is made of.

A deep copy of a graph writes and compiles its source anew, and PyTorch keeps each such source until the process ends: a
server that follows a training would grow with every version.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn


def with_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """Returns a module that computes what ``module`` does, with other weights.

    Args:
        module: the module; it and those in it stay as they are, and share their code with what is returned.
        weights: name of a parameter or buffer -> the tensor in its place; the others are shared.
    """
    replaced: dict[int, Tensor] = {}
    for name, each in (*module.named_parameters(), *module.named_buffers()):
        if name in weights:
            tensor = weights[name]
            is_parameter = isinstance(each, nn.Parameter)
            replaced[id(each)] = nn.Parameter(tensor, each.requires_grad) if is_parameter else tensor
    return _copy(module, replaced)


def _copy(module: nn.Module, replaced: Mapping[int, Tensor]) -> nn.Module:
    """Returns a module of the same class; ``replaced`` is the id of a tensor -> what is in its place, also where one
    tensor has several names."""
    found = object.__new__(type(module))
    found.__dict__.update(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        found.__dict__[kind] = {
            name: None if each is None else replaced.get(id(each), each) for name, each in module.__dict__[kind].items()
        }
    found.__dict__["_modules"] = {
        name: None if each is None else _copy(each, replaced) for name, each in module.__dict__["_modules"].items()
    }
    return found

"""What of a recommender goes into a snapshot, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ziggurat.checkpoint.snapshot import Snapshot
from ziggurat.core.errors import RunFolderError
from ziggurat.training.averaged import AveragedWeights
from ziggurat.training.recommender import Recommender


def take_snapshot(
    recommender: Recommender,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    average: AveragedWeights | None = None,
) -> Snapshot:
    """Weights, their average, optimizer states and random state; ``state`` is kept as JSON beside them."""
    groups: dict[str, Mapping[str, Tensor]] = {
        "dense": recommender.dense_tensors(),
        "tables": recommender.lookup.weights(),
        "table_optimizer": recommender.lookup.optimizer_state(),
        "dense_optimizer": _flatten(optimizer),
        "random": _random_state(),
    }
    if average is not None:
        groups["average"] = average.tensors
    return Snapshot(groups, state)


@torch.no_grad()
def restore(recommender: Recommender, snapshot: Snapshot) -> None:
    """Put the weights that a snapshot is to be used by into ``recommender``: their average where there is one.

    Raises:
        RunFolderError: tensors are missing, too many, or of another shape; nothing was changed then.
    """
    if "average" in snapshot.groups:
        _copy({"average": recommender.weights()}, snapshot)
    else:
        _copy({"dense": recommender.dense_tensors(), "tables": recommender.lookup.weights()}, snapshot)


@torch.no_grad()
def resume(
    recommender: Recommender,
    snapshot: Snapshot,
    optimizer: torch.optim.Optimizer,
    average: AveragedWeights | None = None,
) -> None:
    """Put back everything needed to train on.

    Raises:
        RunFolderError: as :func:`restore`.
    """
    lookup = recommender.lookup
    targets: dict[str, Mapping[str, Tensor]] = {
        "dense": recommender.dense_tensors(),
        "tables": lookup.weights(),
        "table_optimizer": lookup.optimizer_state(),
    }
    _copy(targets, snapshot)
    if average is not None:
        average.load(snapshot.groups["average"])
    _unflatten(optimizer, snapshot.groups["dense_optimizer"])
    random = snapshot.groups["random"]
    torch.set_rng_state(random["torch"])
    if "cuda" in random and torch.cuda.is_available():
        torch.cuda.set_rng_state(random["cuda"])


def _random_state() -> dict[str, Tensor]:
    """Of this process, and of its CUDA device where it has used one (dropout draws there). Not tried on CUDA yet."""
    state = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _copy(targets: Mapping[str, Mapping[str, Tensor]], snapshot: Snapshot) -> None:
    for group, tensors in targets.items():
        _check(group, tensors, snapshot.groups[group])
    for group, tensors in targets.items():
        for name, tensor in tensors.items():
            tensor.copy_(snapshot.groups[group][name])


def _check(group: str, live: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    problems = [f"{name} is missing" for name in live.keys() - saved.keys()]
    problems += [f"{name} is unknown to this model" for name in saved.keys() - live.keys()]
    problems += [
        f"{name} is {tuple(saved[name].shape)}, the model has {tuple(live[name].shape)}"
        for name in live.keys() & saved.keys()
        if saved[name].shape != live[name].shape
    ]
    if problems:
        raise RunFolderError(
            f"checkpoint group {group!r}: {'; '.join(sorted(problems)[:5])}", "it belongs to another config"
        )


def _flatten(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """``parameter/state`` -> tensor. Parameters are numbered in the order of the optimizer's groups."""
    order = {id(p): i for i, p in enumerate(p for group in optimizer.param_groups for p in group["params"])}
    flat: dict[str, Tensor] = {}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            if value is not None:
                flat[f"{order[id(parameter)]}/{key}"] = torch.as_tensor(value)
    return flat


def _unflatten(optimizer: torch.optim.Optimizer, flat: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        number, _, name = key.partition("/")
        state.setdefault(int(number), {})[name] = tensor
    values = optimizer.state_dict()
    values["state"] = state
    optimizer.load_state_dict(values)

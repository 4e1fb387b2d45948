"""Collects the state of a recommender for a checkpoint, and restores it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import TableShape
from ziggurat.checkpoint.reader import CheckpointReader
from ziggurat.core.errors import RunFolderError, shorten
from ziggurat.optim.shampoo.shampoo import Shampoo
from ziggurat.parallel.tensor_slices import TensorSlice, fill, gather
from ziggurat.training.averaged import AveragedWeights
from ziggurat.training.recommender import Recommender


def dense_state(
    recommender: Recommender, optimizer: torch.optim.Optimizer, average: AveragedWeights | None = None
) -> dict[str, Tensor] | None:
    """Returns ``GROUP/NAME`` -> whole, live tensor, for everything but rows of tables.

    That is the dense weights, the average of all weights, optimizer states and random state. All ranks call it
    together; only the first gets the result, the others get None.
    """
    counts = [tensor_slice for tensor_slice in recommender.lookup.state_slices() if not tensor_slice.shape]
    groups = {
        "dense": gather(recommender.dense_slices()),
        "table_optimizer": gather(counts),
        "dense_optimizer": gather(optimizer_slices(optimizer)),
        "random": _random_state(),
    }
    if average is not None:
        groups["average"] = gather(average.tensor_slices)
    if dist.get_rank():
        return None
    return {f"{group}/{name}": each for group, tensors in groups.items() for name, each in (tensors or {}).items()}


def table_shapes(recommender: Recommender) -> dict[str, TableShape]:
    """Returns the shapes of the tables of all ranks, by name."""
    specs = {spec.name: spec for spec in recommender.lookup.layout.tables}
    states: list[dict[str, dict[str, int]]] = [{}]
    for tensor_slice in recommender.lookup.state_slices():
        if tensor_slice.shape:
            table, _, name = tensor_slice.name.rpartition("/")
            states[0].setdefault(table, {})[name] = tensor_slice.shape[1] if len(tensor_slice.shape) > 1 else 0
    if dist.get_world_size() > 1:
        own, states = states[0], [{}] * dist.get_world_size()
        dist.all_gather_object(states, own)
    widths = {table: each for found in states for table, each in found.items()}
    return {name: TableShape(rows=spec.rows, dim=spec.dim, states=widths.get(name, {})) for name, spec in specs.items()}


@torch.no_grad()
def restore(recommender: Recommender, saved: CheckpointReader) -> None:
    """Restores the weights to predict with into ``recommender``: the averaged ones if the checkpoint has them.

    Raises:
        RunFolderError: tensors are missing, unknown or misshapen, or a file is damaged; nothing has changed then.
    """
    if saved.shapes("average") is not None:
        _fill({"average": recommender.tensor_slices()}, saved)
    else:
        _fill({"dense": recommender.dense_slices(), "tables": recommender.lookup.tensor_slices()}, saved)


def restore_from(recommender: Recommender, checkpoints: CheckpointFolder, step: int) -> str | None:
    """Restores the checkpoint of a step by :func:`restore`.

    Returns:
        A note for the user if these weights differ from those of training, else None.
    """
    saved = checkpoints.load(step)
    restore(recommender, saved)
    if saved.bits == 32 or saved.shapes("average") is not None:
        return None
    return (
        f"the checkpoint of step {step:,} has its rows in {saved.bits} bits a number (checkpoints.bits); these are "
        "evaluated and used"
    )


@torch.no_grad()
def resume(
    recommender: Recommender,
    saved: CheckpointReader,
    optimizer: torch.optim.Optimizer,
    average: AveragedWeights | None = None,
) -> None:
    """Restores everything needed to continue training.

    Raises:
        RunFolderError: as in :func:`restore`.
    """
    lookup = recommender.lookup
    targets = {
        "dense": recommender.dense_slices(),
        "tables": lookup.tensor_slices(),
        "table_optimizer": lookup.state_slices(),
    }
    _fill(targets, saved)
    if average is not None:
        _check("average", recommender.tensor_slices(), saved.shapes("average") or {})
        average.load(saved.whole("average"))
    restore_optimizer(optimizer, saved)
    _restore_random(saved.whole("random"))


def restore_optimizer(
    optimizer: torch.optim.Optimizer, saved: CheckpointReader, group: str = "dense_optimizer"
) -> None:
    """Restores the state of a dense optimizer that was made for the same parameters; its learning rates stay.

    Args:
        optimizer: the optimizer.
        saved: the checkpoint.
        group: the group of tensors that holds what :func:`optimizer_slices` returned.
    """
    _unflatten(optimizer, saved.whole(group))


def _random_state() -> dict[str, Tensor] | None:
    """Returns the random state of every rank: ``torch``, ``torch/1``, …, and ``cuda``, … of ranks that used CUDA.

    Dropout draws on the CUDA device.
    """
    mine = {"torch": torch.get_rng_state()}
    if torch.cuda.is_initialized():
        mine["cuda"] = torch.cuda.get_rng_state()
    every: list[dict[str, Tensor]] = [mine]
    if dist.get_world_size() > 1:
        every = [{}] * dist.get_world_size()
        dist.all_gather_object(every, mine)
    return {
        f"{name}/{rank}" if rank else name: state for rank, each in enumerate(every) for name, state in each.items()
    }


def _restore_random(states: Mapping[str, Tensor]) -> None:
    """Restores this rank's random state; a rank that did not exist at the snapshot keeps the one it has."""
    suffix = f"/{dist.get_rank()}" if dist.get_rank() else ""
    if f"torch{suffix}" in states:
        torch.set_rng_state(_same_kind(states[f"torch{suffix}"], torch.get_rng_state()))
    if f"cuda{suffix}" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(_same_kind(states[f"cuda{suffix}"], torch.cuda.get_rng_state()))


def _same_kind(saved: Tensor, live: Tensor) -> Tensor:
    """Returns a saved random state if it is one, as far as its shape says."""
    if saved.shape != live.shape or saved.dtype != live.dtype:
        raise RunFolderError(
            f"checkpoint group 'random': {saved.dtype} {tuple(saved.shape)}, expected {live.dtype} {tuple(live.shape)}",
            "it was written with another torch",
        )
    return saved


def _fill(targets: Mapping[str, Sequence[TensorSlice]], saved: CheckpointReader) -> None:
    for group, tensor_slices in targets.items():
        _check(group, tensor_slices, saved.shapes(group) or {})
    saved.fill(targets)


def _check(group: str, tensor_slices: Sequence[TensorSlice], saved: Mapping[str, tuple[int, ...]]) -> None:
    """Raises if names or shapes differ.

    Tables may have shards on other ranks only, so unknown names are checked only with a single rank.
    """
    shapes = {tensor_slice.name: tensor_slice.shape for tensor_slice in tensor_slices}
    problems = [f"{name} is missing" for name in shapes.keys() - saved.keys()]
    if dist.get_world_size() == 1:
        problems += [f"{name} is unknown to this model" for name in saved.keys() - shapes.keys()]
    problems += [
        f"{name} is {saved[name]}, the model has {shape}"
        for name, shape in shapes.items()
        if name in saved and saved[name] != shape
    ]
    if problems:
        raise RunFolderError(
            f"checkpoint group {group!r}: {'; '.join(sorted(problems)[:5])}",
            "it was written by another config or, if the model has parts from outside the package, by other code of "
            "theirs: restore that code, or train into a new run folder (--run)",
        )


def optimizer_slices(optimizer: torch.optim.Optimizer) -> list[TensorSlice]:
    """Returns the states as ``parameter/state``; parameters are numbered in the order of the optimizer's groups."""
    states = optimizer.state_dict()["state"]  # Shampoo waits here for roots that are still being computed
    return [
        TensorSlice.of_tensor(f"{number}/{key}", torch.as_tensor(value))
        for number, values in states.items()
        for key, value in values.items()
        if value is not None and not (isinstance(value, Tensor) and value.is_meta)  # of another host's tower
    ]


def _unflatten(optimizer: torch.optim.Optimizer, flat: Mapping[str, Tensor]) -> None:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = {str(number) for number in range(len(parameters))}
    own = isinstance(optimizer, Shampoo)  # it takes whole states and shards them itself
    state: dict[int, dict[str, Tensor]] = {}
    for key, tensor in flat.items():
        number, _, name = key.partition("/")
        if not name or number not in numbers:
            raise RunFolderError(
                f"checkpoint group 'dense_optimizer': {shorten(key)}: there are {len(parameters)} parameters",
                "it belongs to another config",
            )
        parameter = parameters[int(number)]
        if parameter.is_meta:  # of another host's tower
            continue
        state.setdefault(int(number), {})[name] = tensor if own else _spread_like(parameter, tensor, key)
    values = optimizer.state_dict()
    values["state"] = state
    optimizer.load_state_dict(values)


def _spread_like(parameter: Tensor, whole: Tensor, name: str) -> Tensor:
    """Returns this rank's part of a state if its parameter is sharded and has the state's shape, else the whole."""
    if not isinstance(parameter, DTensor) or parameter.shape != whole.shape:
        return whole
    spread = torch.zeros_like(parameter)
    fill([TensorSlice.of_tensor(name, spread)], {name: whole})
    return spread

"""Checks models and sequence encoders, with the blocks and heads in them, for the sizes of an experiment.

Shape legend: B rows, S positions, D dims of a position's vector.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import pydantic
import torch
from torch import Tensor, nn

from ziggurat.contracts.outputs import example_inputs, rows_for, watch
from ziggurat.core.errors import ConfigError
from ziggurat.core.outside.failures import PartFailed
from ziggurat.core.parts import PartConfig
from ziggurat.embeddings.fields import Fields
from ziggurat.embeddings.layout import Layout
from ziggurat.interactions.block import Block, Origin
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder, SequenceEncoderSettings
from ziggurat.models.model import Model, ModelDims, ModelSettings
from ziggurat.parallel.own_random import OwnRandom

MAX_WEIGHTS = 1 << 24
"""The most dense parameters with which a module is built in memory to be checked; a larger one passes shapes alone."""

ModuleT = TypeVar("ModuleT", bound=nn.Module)


def check_model(config: ModelSettings, dims: ModelDims, *, cuda: bool = False) -> int:
    """Checks that a model can be built, and, if it or a part of it is from outside the package, what it returns.

    Args:
        config: the model's config.
        dims: its sizes.
        cuda: whether the model may need CUDA, because it is to be trained there.

    Returns:
        How many numbers of it the dense optimizer trains; none only for a model from outside the package.

    Raises:
        ConfigError: it cannot be built, fails, or returns what it may not; the message names the part.
    """
    if not comes_from_outside(config):
        with torch.device("meta"):  # only shapes are checked: no weights are allocated or initialised
            return trainable_numbers(config.build_checked(dims))
    inputs = Origin(config.title, dims.inputs, (dims.tasks,), "")
    rows = rows_for(dims.tasks, dims.features, dims.dim, dims.dense)
    call = lambda model, device: model(*example_inputs(inputs, rows, device))  # noqa: E731
    return trainable_numbers(_check(lambda: config.build_checked(dims), call, cuda=cuda))


def check_trainable(config: ModelSettings, numbers: int, layout: Layout) -> None:
    """Checks that the dense optimizer has something to train: parameters of the model, or of the fields before it.

    Args:
        config: the model's config.
        numbers: how many numbers of the model it trains, as :func:`check_model` has counted.
        layout: the layout of the fields.

    Raises:
        ConfigError: there is nothing.
    """
    if numbers:
        return
    with torch.device("cpu"), OwnRandom(0):
        fields = Fields(layout)
    if not trainable_numbers(fields):
        raise ConfigError(
            f"{config.title}: has no trainable parameter, and no step before it has one: the dense optimizer has "
            "nothing to train",
            "give the model one, such as a bias per task, torch.nn.Parameter(torch.zeros(dims.tasks)), whose "
            "requires_grad is True",
        )


def trainable_numbers(module: nn.Module) -> int:
    """Returns how many numbers of a module's parameters are trained."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def check_sequence_encoder(config: SequenceEncoderSettings, positions: int, dim: int, *, cuda: bool = False) -> None:
    """Checks that a sequence encoder can be built, and, if it is from outside the package, what it returns.

    Args:
        config: the encoder's config.
        positions: S.
        dim: D.
        cuda: as for :func:`check_model`.

    Raises:
        ConfigError: it cannot be built, fails, or returns what it may not; the message names it.
    """
    if config.reference is None:
        with torch.device("meta"):
            config.build_checked(positions, dim)
        return
    rows = rows_for(positions, dim)

    def call(encoder: nn.Module, device: str) -> None:
        assert isinstance(encoder, SequenceEncoder)
        assert encoder.origin is not None
        positions_BSD, mask_BS, *target = example_inputs(encoder.origin, rows, device)
        lengths_B1 = torch.arange(rows, device=device).unsqueeze(1) % (positions + 1)  # the first row has no position
        mask_BS = torch.arange(positions, device=device) < lengths_B1
        outputs = [
            encoder(torch.where(mask_BS.unsqueeze(2), positions_BSD, absent), mask_BS, *(target or [None]))
            for absent in (0.0, 1.0)
        ]
        if device != "meta":
            _check_masked(config.title, *outputs)

    _check(lambda: config.build_checked(positions, dim), call, cuda=cuda)


def check_module(build: Callable[[], Block | Model]) -> None:
    """Checks what a module from outside the package returns, alone, for the shapes that it was built for.

    Args:
        build: builds it by ``built`` of its config.

    Raises:
        ConfigError: it cannot be built, fails, or returns what it may not; the message names it.
    """

    def call(module: nn.Module, device: str) -> None:
        origin = cast("Block", module).origin
        assert origin is not None
        module(*example_inputs(origin, rows_for(*origin.output), device))

    _check(build, call)


def comes_from_outside(config: Any) -> bool:
    """Returns whether a config, or one inside it, names a part from outside the package."""
    if isinstance(config, PartConfig) and config.reference is not None:
        return True
    if isinstance(config, pydantic.BaseModel):
        return any(comes_from_outside(getattr(config, name)) for name in type(config).model_fields)
    if isinstance(config, Mapping):
        return any(comes_from_outside(each) for each in cast("Mapping[Any, Any]", config).values())
    return isinstance(config, tuple | list) and any(comes_from_outside(each) for each in cast("list[Any]", config))


def _check(build: Callable[[], ModuleT], call: Callable[[ModuleT, str], object], *, cuda: bool = False) -> nn.Module:
    """Builds a module and calls it: on ``meta`` as in training, and as in evaluation with numbers; returns it.

    Not every operation has a kernel for ``meta``, so an exception there counts only if the module is too large for
    numbers. One on the CPU does not count if the module works on the CUDA device that it is to be trained on.
    """
    failed: PartFailed | None = None
    module, weights = nn.Module(), 0
    try:
        with torch.device("meta"):
            module = build()
        weights = sum(parameter.numel() for parameter in module.parameters())
        watch(module)
        module.train()
        call(module, "meta")
    except PartFailed as error:
        failed = error
    if weights > MAX_WEIGHTS:
        if failed is not None and not isinstance(failed.__cause__, NotImplementedError):
            raise failed
        return module
    try:
        return _call_with_numbers(build, call, "cpu")
    except PartFailed:
        if not (cuda and torch.cuda.is_available()):
            raise
        return _call_with_numbers(build, call, f"cuda:{torch.cuda.current_device()}")


def _call_with_numbers(build: Callable[[], ModuleT], call: Callable[[ModuleT, str], object], device: str) -> ModuleT:
    with torch.device("cpu"), OwnRandom(0):
        module = build().to(device)
    watch(module)
    module.eval()
    call(module, device)
    return module


def _check_masked(title: str, with_zeros_BD: Tensor, with_ones_BD: Tensor) -> None:
    """Refuses a sequence encoder whose output depends on positions that do not exist, or that has one without any."""
    if bool(with_zeros_BD[0].any()):
        raise ConfigError(
            f"{title}: forward returned numbers other than zero for a row whose mask is False everywhere",
            "multiply by the mask, and mind divisions by the number of positions",
        )
    if not torch.equal(with_zeros_BD, with_ones_BD):
        raise ConfigError(
            f"{title}: what forward returned depends on vectors where the mask is False",
            "leave these positions out: they hold any finite numbers",
        )

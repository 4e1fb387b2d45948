"""Longer checks of models, blocks, heads and sequence encoders, for the tests of those who write them.

Shape legend: B rows, F fields, D floats of a field, S positions, N numbers of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ziggurat.contracts import modules
from ziggurat.contracts.outputs import example_inputs
from ziggurat.core.errors import ConfigError
from ziggurat.core.outside.failures import called
from ziggurat.core.parts import PartConfig
from ziggurat.interactions.block import Block, BlockSettings, Origin
from ziggurat.interactions.counted_flops import counted_flops
from ziggurat.interactions.heads.head import HeadSettings
from ziggurat.interactions.sequences.sequence_encoder import SequenceEncoder, SequenceEncoderSettings
from ziggurat.models.model import Model, ModelDims, ModelSettings
from ziggurat.parallel.own_random import OwnRandom

_ROWS = 5
_RTOL, _ATOL = 1e-4, 1e-5
"""How far numbers of the same row may differ in batches of different sizes, by the order of float32 sums."""

ModuleT = TypeVar("ModuleT", bound=Block | Model)
ConfigT = TypeVar("ConfigT", bound=PartConfig)


def check_model(config: ModelSettings, dims: ModelDims | None = None) -> Model:
    """Builds a model and checks all that its contract promises; for a test of one's own model.

    These are the checks: ``build`` returns a model; it returns finite logits of the right shape, in evaluation and in
    training, also under bf16 autocast; gradients reach every parameter and the embeddings; a row's logits depend on
    that row alone; the same seed gives the same weights, and a saved state is restored whole; ``flops()``, if it is
    defined, counts no less than the matrix products that torch counts.

    Args:
        config: the config of the model, such as ``MyModel.Config(hidden=8)``.
        dims: its sizes; default: two tasks with dense features, and one task without.

    Returns:
        The model of the first sizes.

    Raises:
        ConfigError: the model breaks its contract; the message says where.
    """
    config = as_imported(config)
    sizes = (ModelDims(3, 4, config.embedding_dim(8, 2), 2), ModelDims(0, 4, config.embedding_dim(8, 1), 1))
    models: list[Model] = []
    for each in sizes if dims is None else (dims,):
        modules.check_model(config, each)
        model = _check_properties(lambda each=each: config.build_checked(each))
        _check_half_precision(config.title, model)
        if not model.counts_flops:
            _check_flops(f"{config.title}: flops()", model.flops(), model)
        models.append(model)
    return models[0]


def check_block(config: BlockSettings, features: int = 5, dim: int = 8) -> Block:
    """Builds a block (B, F, D) → (B, out_features, D) and checks all that its contract promises.

    These are the checks: ``build`` returns a block with ``out_features``; it returns finite numbers of the right shape
    and dtype; gradients reach every parameter and the input; a row's output depends on that row alone; the same seed
    gives the same weights, and a saved state is restored whole; ``matmul_flops()``, if it is defined, is what torch
    counts.

    Args:
        config: the config of the block, such as ``MyBlock.Config(outputs=4)``.
        features: F.
        dim: D.

    Returns:
        The block.

    Raises:
        ConfigError: the block breaks its contract; the message says where.
    """
    config = as_imported(config)
    return _check_block(lambda: config.build_checked(features, dim))


def check_head(config: HeadSettings, inputs: int = 12, tasks: int = 2) -> Block:
    """Builds a head (B, N) → (B, tasks) and checks what :func:`check_block` checks of a block.

    Args:
        config: the config of the head.
        inputs: N.
        tasks: the number of tasks.

    Returns:
        The head.

    Raises:
        ConfigError: the head breaks its contract; the message says where.
    """
    config = as_imported(config)
    return _check_block(lambda: config.build_checked(inputs, tasks))


def check_sequence_encoder(config: SequenceEncoderSettings, positions: int = 6, dim: int = 8) -> SequenceEncoder:
    """Builds a sequence encoder (B, S, D) → (B, D) and checks what :func:`check_block` checks of a block.

    In addition a row without positions must give zeros, and positions that do not exist must not matter.

    Args:
        config: the config of the encoder.
        positions: S.
        dim: D.

    Returns:
        The encoder.

    Raises:
        ConfigError: the encoder breaks its contract; the message says where.
    """
    config = as_imported(config)
    modules.check_sequence_encoder(config, positions, dim)
    return _check_block(lambda: config.build_checked(positions, dim))


def as_imported(config: ConfigT) -> ConfigT:
    """Returns the config as if it had been named by ``import``, so that what it builds is checked."""
    if config.reference is not None:
        return config
    kind = type(config)
    copy = config.model_copy()
    copy._reference = f"{kind.__module__}:{kind.__qualname__.removesuffix('.Config')}"  # pyright: ignore[reportPrivateUsage]
    return copy


BlockT = TypeVar("BlockT", bound=Block)


def _check_block(build: Callable[[], BlockT]) -> BlockT:
    modules.check_module(build)
    block = _check_properties(build)
    if type(block).matmul_flops is not Block.matmul_flops:
        _check_flops(f"{_origin(block).title}: matmul_flops()", block.matmul_flops(), block, exact=True)
    return block


@dataclass(frozen=True, slots=True)
class _Run:
    """A pass of a module over all rows, and the same rows one by one."""

    outputs: Tensor
    one_by_one: Tensor


def _check_properties(build: Callable[[], ModuleT]) -> ModuleT:
    """Checks gradients, seeds, saved states, and that rows do not depend on each other; returns a module."""
    module, again, other = _built(build, 1), _built(build, 1), _built(build, 2)
    title = _origin(module).title
    for name, tensor in module.state_dict().items():
        if not torch.equal(tensor, again.state_dict()[name]):
            raise ConfigError(
                f"{title}: {name} differs between two builds with the same seed",
                "draw initial weights by torch, from its global generator",
            )
    _check_gradients(title, module)
    run = _run(module)
    if not torch.allclose(run.outputs, run.one_by_one, rtol=_RTOL, atol=_ATOL):
        raise ConfigError(
            f"{title}: a row's output in a batch of {_ROWS} differs from its output alone",
            "let a row's output depend on that row alone: mind sums, norms and reshapes over the rows",
        )
    called(title, "load_state_dict", lambda: other.load_state_dict(module.state_dict()))
    if not torch.allclose(_run(other).outputs, run.outputs, rtol=_RTOL, atol=_ATOL):
        raise ConfigError(
            f"{title}: after load_state_dict of its state_dict another one returns other numbers",
            "make every tensor that is drawn or learned a parameter, or a buffer by register_buffer",
        )
    return module


def _check_gradients(title: str, module: nn.Module) -> None:
    module.train()
    inputs = _inputs(module)
    called(title, "backward", lambda: module(*inputs).square().sum().backward())
    lacking = [
        name for name, parameter in module.named_parameters() if parameter.requires_grad and parameter.grad is None
    ]
    names = list(_origin(module).inputs)
    lacking += [
        name
        for name, each in zip(names, inputs, strict=True)
        if each.requires_grad and each.numel() and each.grad is None and not name.startswith("dense")
    ]
    if lacking:
        raise ConfigError(
            f"{title}: no gradient reaches {', '.join(lacking[:5])}",
            "use it in forward, without detach(); leave out parameters that are not used",
        )
    module.zero_grad(set_to_none=True)
    module.eval()


def _check_half_precision(title: str, model: Model) -> None:
    def logits() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(*_inputs(model))

    found = called(title, "forward under bf16 autocast (training.precision: bf16)", logits)
    if found.dtype not in (torch.float32, torch.float64) or not bool(torch.isfinite(found).all()):
        raise ConfigError(
            f"{title}: under bf16 autocast the logits are {found.dtype}, expected finite torch.float32",
            "define logits() rather than forward(), which converts them",
        )


def _check_flops(what: str, stated: int, module: Block | Model, *, exact: bool = False) -> None:
    counted = counted_flops(module, _origin(module).example)
    if stated < counted or (exact and stated != counted):
        raise ConfigError(
            f"{what} says {stated:,}, torch counts {counted:,} for the matrix products of a row",
            "count 2 for each multiplication of a matrix product, for one row; or leave it out: torch counts then",
        )


def _built(build: Callable[[], ModuleT], seed: int) -> ModuleT:
    with OwnRandom(seed):
        module = build()
    module.eval()
    return module


def _run(module: nn.Module) -> _Run:
    inputs = _inputs(module)
    with torch.no_grad():
        alone = [module(*(each[row : row + 1] for each in inputs)) for row in range(_ROWS)]
        return _Run(module(*inputs), torch.cat(alone))


def _inputs(module: nn.Module) -> Sequence[Tensor]:
    return example_inputs(_origin(module), _ROWS, "cpu")


def _origin(module: nn.Module) -> Origin:
    origin = getattr(module, "origin", None)
    assert isinstance(origin, Origin)
    return origin

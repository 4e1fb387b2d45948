"""Optimizers of embedding tables, fused into backward: each touched row is updated once, by the sum of its gradients.

What FBGEMM 1.8.0 can do, found by running it (CPU) and reading it (CUDA):

================ ============================== ===================================================================
optimizer        kernels                        weight decay
================ ============================== ===================================================================
rowwise_adagrad  CPU, CUDA                      CUDA only: the CPU's fp32 kernel ignores it, unless features share
                                                the table, when another kernel honours it
adagrad          CPU, CUDA                      no
sgd              CPU, CUDA                      no
adam             CUDA (on CPU: ``embeddings``)  decoupled
================ ============================== ===================================================================

What would be ignored is refused. Rows that no id of a batch touches stay as they are, weight decay included; only Adam
with ``rows: all``, which ``embeddings`` carries out itself, updates them too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from ziggurat.core.config import Config
from ziggurat.core.errors import EnvironmentMismatch
from ziggurat.optim.numbers import Beta, Decay, Rate

if TYPE_CHECKING:
    from torch.optim import Optimizer


class RowwiseAdagrad(Config):
    """Adagrad with one sum per row: s += mean_d(G²), w −= lr·G / (√s + eps). Four bytes of state a row."""

    name: Literal["rowwise_adagrad"] = "rowwise_adagrad"

    lr: Rate = 0.05
    """Learning rate; the schedule multiplies it."""

    eps: Rate = 1e-8
    """Added to the root of the sum."""

    weight_decay: Decay = 0.0
    """Added to a touched row's gradient, times the row. CUDA only; ``embeddings.l2`` penalises rows everywhere."""


class RowAdagrad(Config):
    """Adagrad: s += G², w −= lr·G / (√s + eps), number by number. As much state as weights."""

    name: Literal["adagrad"] = "adagrad"

    lr: Rate = 0.05
    """Learning rate; the schedule multiplies it."""

    eps: Rate = 1e-8
    """Added to the root of the sum."""


class RowAdam(Config):
    """Adam; the bias correction counts the table's steps. Twice as much state as weights."""

    name: Literal["adam"] = "adam"

    lr: Rate = 1e-3
    """Learning rate; the schedule multiplies it."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the first and of the second moment."""

    eps: Rate = 1e-8
    """Added to the root of the second moment."""

    weight_decay: Decay = 0.0
    """Share, times the learning rate, by which an updated row shrinks a step (decoupled)."""

    rows: Literal["touched", "all"] = "touched"
    """Which rows a step updates: those in the batch, or the whole table as with a dense gradient, where the moments of
    the other rows decay and go on moving them. ``all`` costs time for every row and suits small tables."""

    l2: Decay = 0.0
    """Added to every row's gradient, times the row; needs ``rows: all``. The boards' embedding regulariser."""

    @model_validator(mode="after")
    def _l2_of_all_rows(self) -> Self:
        if self.l2 and self.rows != "all":
            raise ValueError("l2 needs `rows: all`; to penalise only the rows of each batch, set embeddings.l2")
        return self


class RowSGD(Config):
    """Stochastic gradient descent: w −= lr·G. No state."""

    name: Literal["sgd"] = "sgd"

    lr: Rate = 0.05
    """Learning rate; the schedule multiplies it."""


RowOptimizerConfig = Annotated[RowwiseAdagrad | RowAdagrad | RowAdam | RowSGD, Field(discriminator="name")]
"""The config of any row optimizer, told apart by ``name``."""

_PARSER: TypeAdapter[RowOptimizerConfig] = TypeAdapter(RowOptimizerConfig)


def parse_row_optimizer(settings: Mapping[str, Any]) -> RowOptimizerConfig:
    """The config that was written down as ``TableSpec.optimizer``; keys left out take their defaults."""
    return _PARSER.validate_python(dict(settings))


def fused_optimizer(
    settings: Mapping[str, Any], device: str = "cpu", table: str = ""
) -> tuple[type[Optimizer], dict[str, Any]]:
    """What ``torch.distributed.optim._apply_optimizer_in_backward`` needs so that TorchRec fuses the optimizer.

    Args:
        settings: the row optimizer's config, as in ``TableSpec.optimizer``.
        device: type of the device that holds the table.
        table: its name, for the message.

    Returns:
        The class by which TorchRec knows the optimizer, and its settings under FBGEMM's names.

    Raises:
        EnvironmentMismatch: FBGEMM cannot do this on the device, or would ignore a setting there.
    """
    # Imported here: experiment configs must load without the engine.
    import torchrec.optim as classes
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import WeightDecayMode

    config = parse_row_optimizer(settings)
    if device == "cpu":
        _check_cpu(config, table)
    match config:
        case RowwiseAdagrad():
            fused = {"lr": config.lr, "eps": config.eps}
            if config.weight_decay:
                fused |= {"weight_decay": config.weight_decay, "weight_decay_mode": WeightDecayMode.L2}
            return classes.RowWiseAdagrad, fused
        case RowAdagrad():
            return classes.Adagrad, {"lr": config.lr, "eps": config.eps}
        case RowSGD():
            return classes.SGD, {"lr": config.lr}
        case RowAdam():
            beta1, beta2 = config.betas
            fused = {"lr": config.lr, "beta1": beta1, "beta2": beta2, "eps": config.eps}
            return classes.Adam, {**fused, "weight_decay": config.weight_decay}


def _check_cpu(config: RowOptimizerConfig, table: str) -> None:
    which = f"table {table!r}: " if table else ""
    if isinstance(config, RowAdam):
        raise EnvironmentMismatch(
            f"{which}FBGEMM has no Adam on the CPU that is fused into backward",
            "use rowwise_adagrad, adagrad or sgd in embeddings.optimizer, or train on CUDA",
        )
    if isinstance(config, RowwiseAdagrad) and config.weight_decay:
        raise EnvironmentMismatch(
            f"{which}FBGEMM's row-wise Adagrad ignores weight_decay ({config.weight_decay}) on the CPU",
            "set embeddings.l2 instead, which penalises the looked-up rows on every device, or train on CUDA",
        )

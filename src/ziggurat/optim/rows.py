"""Optimizers of embedding tables, fused into backward: each touched row is updated once, with the sum of its gradients.

FBGEMM 1.8.0's support, found by running it (CPU) and by reading its code (CUDA):

================ ============================== ===================================================================
optimizer        kernels                        weight decay
================ ============================== ===================================================================
rowwise_adagrad  CPU, CUDA                      CUDA only: the CPU's fp32 kernel ignores it; another kernel, used if
                                                features share the table, honours it
adagrad          CPU, CUDA                      no
sgd              CPU, CUDA                      no
adam             CUDA (on CPU: ``embeddings``)  decoupled
================ ============================== ===================================================================

Settings that would be ignored are refused. Rows that no id of a batch touches are not changed, not even by weight
decay. The exception is Adam with ``rows: all``, which ``embeddings`` implements itself: it updates all rows.
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
    """Adagrad with one sum per row: s += mean_d(G²), w −= lr·G / (√s + eps). State: four bytes a row."""

    name: Literal["rowwise_adagrad"] = "rowwise_adagrad"

    lr: Rate = 0.05
    """Learning rate; the schedule multiplies it."""

    eps: Rate = 1e-8
    """Added to the root of the sum."""

    weight_decay: Decay = 0.0
    """L2 penalty's factor: it times the row is added to a touched row's gradient. CUDA only; use ``embeddings.l2`` to
    penalise rows on every device."""


class RowAdagrad(Config):
    """Adagrad: s += G², w −= lr·G / (√s + eps), elementwise. State: as large as the weights."""

    name: Literal["adagrad"] = "adagrad"

    lr: Rate = 0.05
    """Learning rate; the schedule multiplies it."""

    eps: Rate = 1e-8
    """Added to the root of the sum."""


class RowAdam(Config):
    """Adam; the bias correction counts the table's steps. State: twice as large as the weights."""

    name: Literal["adam"] = "adam"

    lr: Rate = 1e-3
    """Learning rate; the schedule multiplies it."""

    betas: tuple[Beta, Beta] = (0.9, 0.999)
    """Decay of the first and of the second moment."""

    eps: Rate = 1e-8
    """Added to the root of the second moment."""

    weight_decay: Decay = 0.0
    """Decoupled weight decay: an updated row shrinks by lr·weight_decay a step."""

    rows: Literal["touched", "all"] = "touched"
    """Which rows a step updates: those in the batch, or all rows as with a dense gradient. With ``all``, the moments of
    the other rows decay and keep moving them; it costs time for every row and suits small tables."""

    l2: Decay = 0.0
    """L2 penalty's factor: it times the row is added to every row's gradient. Needs ``rows: all``. It is the embedding
    regulariser of public CTR benchmarks."""

    @model_validator(mode="after")
    def _l2_of_all_rows(self) -> Self:
        if self.l2 and self.rows != "all":
            raise ValueError("l2 needs `rows: all`; to penalise only the rows of each batch, set embeddings.l2")
        return self


class RowSGD(Config):
    """Stochastic gradient descent: w −= lr·G. State: none."""

    name: Literal["sgd"] = "sgd"

    lr: Rate = 0.05
    """Learning rate; the schedule multiplies it."""


RowOptimizerConfig = Annotated[RowwiseAdagrad | RowAdagrad | RowAdam | RowSGD, Field(discriminator="name")]
"""The config of any row optimizer, discriminated by ``name``."""

_PARSER: TypeAdapter[RowOptimizerConfig] = TypeAdapter(RowOptimizerConfig)


def parse_row_optimizer(settings: Mapping[str, Any]) -> RowOptimizerConfig:
    """Parses a ``TableSpec.optimizer``; missing keys take their defaults."""
    return _PARSER.validate_python(dict(settings))


def fused_optimizer(
    settings: Mapping[str, Any], device: str = "cpu", table: str = ""
) -> tuple[type[Optimizer], dict[str, Any]]:
    """Returns arguments for ``torch.distributed.optim._apply_optimizer_in_backward`` that make TorchRec fuse the
    optimizer.

    Args:
        settings: the row optimizer's config, as in ``TableSpec.optimizer``.
        device: type of the device that holds the table.
        table: name of the table, for messages.

    Returns:
        The class by which TorchRec identifies the optimizer, and its settings under FBGEMM's names.

    Raises:
        EnvironmentMismatch: FBGEMM does not have the optimizer on the device, or would ignore a setting there.
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
    prefix = f"table {table!r}: " if table else ""
    if isinstance(config, RowAdam):
        raise EnvironmentMismatch(
            f"{prefix}FBGEMM has no Adam on the CPU that is fused into backward",
            "use rowwise_adagrad, adagrad or sgd in embeddings.optimizer, or train on CUDA",
        )
    if isinstance(config, RowwiseAdagrad) and config.weight_decay:
        raise EnvironmentMismatch(
            f"{prefix}FBGEMM's row-wise Adagrad ignores weight_decay ({config.weight_decay}) on the CPU",
            "set embeddings.l2 instead, which penalises the looked-up rows on every device, or train on CUDA",
        )

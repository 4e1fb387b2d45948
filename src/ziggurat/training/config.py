"""The ``training`` and ``evaluation`` sections of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.errors import ConfigError, nearest
from ziggurat.data.ingest.address import checked_address
from ziggurat.metrics.names import higher_is_better
from ziggurat.optim.schedule import Constant, ScheduleConfig

Precision = Literal["fp32", "bf16", "auto"]


class EarlyStopping(Config):
    """Stops training when the monitored validation metric has not improved for ``patience`` evaluations; with a cyclic
    schedule, for as many cycles."""

    patience: int = pydantic.Field(default=2, ge=1)
    """Evaluations without improvement before training stops; with a cyclic schedule only those at the ends of cycles
    count."""
    min_delta: float = pydantic.Field(default=0.0, ge=0)
    """An improvement smaller than this does not count."""


class WarmStart(Config):
    """Starts with the weights of another run, if this one has no checkpoint yet."""

    run: Path
    """Folder of the other run, relative to the working directory."""
    checkpoint: Literal["best", "last"] | Annotated[int, pydantic.Field(ge=0)] = "best"
    """The other run's checkpoint: best, last, or a step."""
    tables: Literal["all"] | tuple[str, ...] = "all"
    """Tables whose rows are copied, each row to the row of the same value; ``all``: the tables that both runs have.
    Other tables, and rows of values that the other run does not know, are initialised from the seed."""
    dense: bool = True
    """Whether all weights that are not rows of tables are copied. Both runs must have the same model, with the same
    inputs in the same order."""
    optimizer: bool = False
    """Whether the states of the optimizers are copied too; both runs must use the same kinds. The learning rates and
    their schedule are always those of this run."""

    @pydantic.field_validator("tables", mode="before")
    @classmethod
    def _all_or_list(cls, tables: object) -> object:
        if isinstance(tables, str) and tables != "all":
            raise ValueError(f"expected all, or a list as in [{tables}]")
        return tables

    @pydantic.field_validator("checkpoint", mode="before")
    @classmethod
    def _word_or_step(cls, checkpoint: object) -> object:
        if isinstance(checkpoint, str) and checkpoint not in {"best", "last"}:
            raise ValueError("expected best, last, or a step")
        return checkpoint

    @pydantic.model_validator(mode="after")
    def _copies_something(self) -> WarmStart:
        if not (self.dense or self.tables):
            raise ValueError("tables is empty and dense is false, so nothing is copied; leave warm_start out")
        return self

    def check(self, tables: Sequence[str]) -> None:
        """Checks that the model has every listed table.

        Args:
            tables: the names of the model's tables.

        Raises:
            ConfigError: the model lacks a table; the message suggests the nearest name.
        """
        for name in self.tables if self.tables != "all" else ():
            if name not in tables:
                close = nearest(name, tables)
                hint = f"did you mean {close!r}?" if close else f"tables: {', '.join(tables) or 'none'}"
                raise ConfigError(f"training.warm_start.tables: no feature uses table {name!r}; {hint}")


class TrainingConfig(Config):
    """Length, batch size, precision and schedule of training, and how often it evaluates and saves."""

    batch_size: int = pydantic.Field(default=4096, ge=1)
    """Rows per step; several ranks share them."""
    epochs: int = pydantic.Field(default=5, ge=1)
    """Passes over the training split; ``max_steps`` may end training earlier."""
    max_steps: int | None = pydantic.Field(default=None, ge=1)
    """Stop after this many steps, whatever the epochs say."""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**63)
    """Seeds the initial weights, the order of the rows and dropout. Same seed, same weights, bit for bit."""
    warm_start: WarmStart | None = None
    """Start with the weights of another run; default: initialise them from the seed."""
    start_at_base_rate: bool | None = None
    """Whether the prediction of a binary label begins at its base rate in the training rows rather than at 1/2. For
    rare events that saves the first epochs. Default: it does; a run that was begun by a version whose default was
    another one goes on as it began. Predictions of labels of other kinds always begin at their mean."""
    negative_rate: float | None = pydantic.Field(default=None, gt=0, le=1)
    """Share of the negatives that are trained on, chosen anew in each epoch; for a single binary label. A batch then
    has fewer rows than ``batch_size``. Evaluation and prediction correct for it. Default: all."""
    schedule: ScheduleConfig = Constant.Config()
    """Multiplies every learning rate, of the dense part and of tables."""
    clip_norm: float | None = pydantic.Field(default=None, gt=0)
    """Maximal norm of the dense gradients. Tables are updated in the backward pass and not clipped."""
    accumulate: int = pydantic.Field(default=1, ge=1)
    """Batches whose dense gradients are averaged before they are exchanged between ranks and the dense optimizer makes
    a step. Tables are updated at every batch. At the end of an epoch, the step is made with the batches since the last
    one. ``evaluate_every`` and ``save_every`` must be multiples of it."""
    activation_checkpointing: bool = False
    """Whether each block of a stacked model keeps only its input and recomputes the rest in the backward pass: a third
    more arithmetic for a fraction of the memory. Blocks with batch norms do not recompute."""
    weight_average: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Decay of an exponential moving average of all weights, which is then evaluated, saved and used. 0.99 averages
    over about the last 100 steps. The average often has a better AUC and calibration than any single step. Each step
    then reads every row of every table, so it suits small tables."""
    precision: Precision = "fp32"
    """Precision of the dense model's arithmetic (autocast); tables and losses stay in fp32. ``auto``: bf16 where the
    device multiplies it in hardware, else fp32; the run's config records which."""
    compile: bool | Literal["auto"] = False
    """Whether to torch.compile the dense model, which takes 10 to 80 seconds at the first step. ``auto``: on a GPU if a
    C++ compiler is installed (not measured yet), never on a CPU, where some models lose; the run's config
    records which. Where the compiler fails, a warning says why and the model runs uncompiled."""
    evaluate_every: int | None = pydantic.Field(default=None, ge=1)
    """Steps between evaluations on the validation split; default: once an epoch. A cyclic schedule also evaluates at
    the end of each cycle."""
    monitor: str = "log_loss"
    """The validation metric that decides which checkpoint is best. With several labels, METRIC is the mean over them
    by ``loss_weight``, and LABEL/METRIC that of one label, as in ``click/log_loss``. Default with a label that is a
    number: its main metric (``rmse``, ``mae``, ``rmsle``, ``deviance``, ``pinball``; ``log_loss`` of an ordinal one);
    with several such, or of several kinds, ``relative_loss``, the loss over that of the best constant prediction."""
    early_stopping: EarlyStopping | None = None
    """Stop when the monitored metric no longer improves; default: train to the end."""
    save_every: int | None = pydantic.Field(default=None, ge=1)
    """Steps between checkpoints; default: at each evaluation. Training also saves at its end and at Ctrl-C."""
    keep: int = pydantic.Field(default=2, ge=1)
    """Number of newest checkpoints to keep in addition to the best and to a cyclic schedule's snapshots."""
    log_every: int = pydantic.Field(default=20, ge=1)
    """Steps between lines in metrics.jsonl and TensorBoard."""
    threads: int | None = pydantic.Field(default=None, ge=1, le=1024)
    """CPU threads of torch; default: torch's own choice. Results may differ in the last bits between thread counts."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device to train on; ``auto`` uses CUDA if available."""
    prefetch: int | None = pydantic.Field(default=None, ge=0)
    """Batches that a thread of the loader makes ahead; default: 2 on CUDA, none on the CPU, where the step's threads
    use all cores (another thread cost 9 % of the speed on two cores)."""

    readers: tuple[str, ...] = ()
    """Addresses of the readers (``ziggurat ingest``) that make the training batches, as in grpc://host:8815; default:
    this process makes them. The batches are the same, bit for bit. With TLS, grpc+tls://host:8815."""
    reader_token_file: Path | None = None
    """The file with the readers' token (``ziggurat ingest --token-file``)."""
    reader_authorities: Path | None = None
    """A PEM file with the readers' certificate, or that of the authority that signed it; default: gRPC's own list."""
    reader_timeout: float = pydantic.Field(default=60.0, gt=0)
    """Seconds without a batch from any reader after which training ends with an error."""

    @pydantic.field_validator("readers")
    @classmethod
    def _are_addresses(cls, readers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked_address(each) for each in readers)

    @pydantic.model_validator(mode="after")
    def _intervals_are_multiples_of_accumulate(self) -> TrainingConfig:
        for name in ("evaluate_every", "save_every"):
            every = getattr(self, name)
            if every is not None and every % self.accumulate:
                raise ValueError(
                    f"{name} is {every}, no multiple of accumulate, {self.accumulate}: accumulated gradients are "
                    "not saved"
                )
        return self

    @pydantic.field_validator("monitor")
    @classmethod
    def _has_a_direction(cls, name: str) -> str:
        higher_is_better(name)
        return name


class EvaluationConfig(Config):
    """Evaluation of the validation and test splits."""

    slices: tuple[str, ...] = ()
    """Categorical features; evaluation and report also show the metrics for each of their values."""
    batch_size: int = pydantic.Field(default=16_384, ge=1)
    """Rows per forward pass when evaluating and predicting."""

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


class EarlyStopping(Config):
    """Stop when the monitored validation metric has not improved for ``patience`` evaluations."""

    patience: int = pydantic.Field(default=2, ge=1)
    """Evaluations without improvement before training stops."""
    min_delta: float = pydantic.Field(default=0.0, ge=0)
    """An improvement smaller than this does not count."""


class WarmStart(Config):
    """Begin with the weights of another run, where this one has no checkpoint yet."""

    run: Path
    """Folder of the other run, relative to the working directory."""
    checkpoint: Literal["best", "last"] | Annotated[int, pydantic.Field(ge=0)] = "best"
    """Which of its checkpoints: best, last, or a step."""
    tables: Literal["all"] | tuple[str, ...] = "all"
    """Tables whose rows are taken, each for the value that it stands for; ``all``: those that both runs have. The
    others, and rows of values that the other run did not know, begin as the seed draws them."""
    dense: bool = True
    """Whether all that is no table is taken: it must be the same model, over the same inputs in the same order."""
    optimizer: bool = False
    """Whether the states of the optimizers are taken too, which must be of the same kinds. The learning rates and their
    schedule are this run's in any case."""

    @pydantic.field_validator("tables", mode="before")
    @classmethod
    def _all_or_a_list(cls, tables: object) -> object:
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
    def _takes_something(self) -> WarmStart:
        if not (self.dense or self.tables):
            raise ValueError("tables is empty and dense is false, so that nothing is taken; leave warm_start out")
        return self

    def check(self, tables: Sequence[str]) -> None:
        """Nothing, where the model has every table that is listed.

        Raises:
            ConfigError: it lacks one; the nearest is named.
        """
        for name in self.tables if self.tables != "all" else ():
            if name not in tables:
                close = nearest(name, tables)
                hint = f"did you mean {close!r}?" if close else f"tables: {', '.join(tables) or 'none'}"
                raise ConfigError(f"training.warm_start.tables: no feature uses table {name!r}; {hint}")


class TrainingConfig(Config):
    """How long, how fast and how exactly to train."""

    batch_size: int = pydantic.Field(default=4096, ge=1)
    """Rows per step; several ranks share them."""
    epochs: int = pydantic.Field(default=5, ge=1)
    """Passes over the training split; ``max_steps`` may end training earlier."""
    max_steps: int | None = pydantic.Field(default=None, ge=1)
    """Stop after this many steps, whatever the epochs say."""
    seed: int = pydantic.Field(default=0, ge=0, lt=2**63)
    """Seeds the initial weights, the order of the rows and dropout. Same seed, same weights, bit for bit."""
    warm_start: WarmStart | None = None
    """Begin with the weights of another run; default: with those that the seed draws."""
    schedule: ScheduleConfig = Constant.Config()
    """Multiplies every learning rate, dense and tables alike."""
    clip_norm: float | None = pydantic.Field(default=None, gt=0)
    """Clip the norm of the dense gradients; tables update inside backward and are not clipped."""
    accumulate: int = pydantic.Field(default=1, ge=1)
    """Batches whose dense gradients are averaged before the dense optimizer makes a step and, of several ranks, before
    they exchange them; tables are updated at every batch. An epoch's end makes the step with what waits by then.
    ``evaluate_every`` and ``save_every`` are multiples of it."""
    activation_checkpointing: bool = False
    """Keep of each block of a stacked model its input alone and compute the rest again in the backward pass: a third
    more arithmetic for a fraction of the memory. Blocks with batch norms are left as they are."""
    weight_average: float | None = pydantic.Field(default=None, gt=0, lt=1)
    """Evaluate, save and use an exponential moving average of all weights with this decay: 0.99 remembers about the
    last 100 steps. Often better in AUC and calibration alike than any single step; each step then passes over every
    row of every table, so it suits small tables."""
    precision: Literal["fp32", "bf16"] = "fp32"
    """Arithmetic of the interaction and the towers (autocast); tables and losses stay fp32."""
    compile: bool = False
    """torch.compile the dense model: faster steps after a first step of some ten seconds."""
    evaluate_every: int | None = pydantic.Field(default=None, ge=1)
    """Steps between evaluations on the validation split; default: once an epoch."""
    monitor: str = "log_loss"
    """The validation metric that decides which checkpoint is best: of several labels, METRIC is the mean over them and
    LABEL/METRIC that of one, as in ``click/log_loss``."""
    early_stopping: EarlyStopping | None = None
    """Stop when the monitored metric no longer improves; default: train to the end."""
    save_every: int | None = pydantic.Field(default=None, ge=1)
    """Steps between checkpoints; default: at each evaluation. The end and Ctrl-C always save."""
    keep: int = pydantic.Field(default=2, ge=1)
    """Newest checkpoints to keep besides the best."""
    log_every: int = pydantic.Field(default=20, ge=1)
    """Steps between lines in metrics.jsonl and TensorBoard."""
    threads: int | None = pydantic.Field(default=None, ge=1, le=1024)
    """CPU threads of torch; default: torch's own choice. Results may differ in the last bits between thread counts."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to train; ``auto`` takes CUDA where there is one."""
    prefetch: int | None = pydantic.Field(default=None, ge=0)
    """Batches made ahead by a thread of the loader; default: 2 on CUDA, none on the CPU, where the step's own threads
    need every core (a thread more cost 9 % of the speed on two cores)."""

    readers: tuple[str, ...] = ()
    """Addresses of readers (``ziggurat ingest``) that make the training batches, as in grpc://host:8815; default: this
    process makes them. The batches are the same, bit for bit."""
    reader_timeout: float = pydantic.Field(default=60.0, gt=0)
    """Seconds without a batch from any reader after which training ends with an error."""

    @pydantic.field_validator("readers")
    @classmethod
    def _are_addresses(cls, readers: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(checked_address(each) for each in readers)

    @pydantic.model_validator(mode="after")
    def _intervals_end_with_a_step(self) -> TrainingConfig:
        for name in ("evaluate_every", "save_every"):
            every = getattr(self, name)
            if every is not None and every % self.accumulate:
                raise ValueError(
                    f"{name} is {every}, no multiple of accumulate, {self.accumulate}: gradients that wait for their "
                    "step are not saved"
                )
        return self

    @pydantic.field_validator("monitor")
    @classmethod
    def _has_a_direction(cls, name: str) -> str:
        higher_is_better(name)
        return name


class EvaluationConfig(Config):
    """What is measured besides the overall figures."""

    slices: tuple[str, ...] = ()
    """Categorical features by whose values the metrics are split in evaluation and report."""
    batch_size: int = pydantic.Field(default=16_384, ge=1)
    """Rows per forward pass when evaluating and predicting."""

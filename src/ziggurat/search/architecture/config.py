"""The config of an architecture search, and the file it is read from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from ziggurat.core.config import Config, parse_config
from ziggurat.core.errors import ConfigError, shorten
from ziggurat.core.untrusted import MAX_YAML_BYTES, Damage, parse_yaml, read_bytes
from ziggurat.search.architecture.space.composed import ComposedSpace
from ziggurat.search.architecture.space.spaces import SpaceConfig
from ziggurat.search.architecture.space.table_choices import TableChoices
from ziggurat.search.architecture.space.whole_space import CostName


class Limits(Config):
    """What a found architecture may cost at most. Default: FLOPs and bytes of the config as it is."""

    flops: Annotated[float, Field(gt=0)] | None = None
    """FLOPs of one row, forward."""

    bytes: Annotated[float, Field(gt=0)] | None = None
    """Bytes of all tables, without states of optimizers."""

    milliseconds: Annotated[float, Field(gt=0)] | None = None
    """Milliseconds of one row in the dense part, forward and backward, by the costs that ``ziggurat doctor
    --architecture`` measured on this machine."""

    def resolved(self, own: dict[CostName, float]) -> dict[CostName, float]:
        """Returns the limits that count.

        Args:
            own: the costs of the config that the search begins with, which are the default.
        """
        given: dict[CostName, float | None] = {
            "flops": self.flops,
            "bytes": self.bytes,
            "milliseconds": self.milliseconds,
        }
        limits: dict[CostName, float] = {name: limit for name, limit in given.items() if limit is not None}
        return limits or own


class SuperNetConfig(Config):
    """The training of the super-net."""

    warmup_epochs: Annotated[int, Field(ge=0)] = 3
    """Passes that train weights alone, of architectures that are drawn by ``preference`` and within the limits.
    Products learn later than sums, and are judged too soon after a short one."""

    epochs: Annotated[int, Field(ge=1)] | None = None
    """Passes that train weights and architecture in turn; default: as many as the config as it is was trained before
    it stopped, within ``training.max_steps``."""

    held_out: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of the training rows that train the architecture; the others train the weights."""

    held_out_batch: Annotated[int, Field(ge=1)] | None = None
    """Rows of a step of the architecture; default: a quarter of ``training.batch_size``, as more steps with other masks
    tell more than more rows."""

    masks: Literal["hard", "soft"] = "hard"
    """``hard``: a step of the weights trains one architecture, drawn by θ, as it will be trained and judged; a step of
    the architecture computes a drawn one too, with the gradient of the mixture (straight through). ``soft``: both mix
    all choices by Gumbel-softmax, as published, which costs as much as all choices together."""

    lr: Annotated[float, Field(gt=0)] = 0.03
    """Learning rate of the architecture's logits (Adam). A larger one decides by noise what has little effect."""

    preference: Annotated[float, Field(ge=0, le=10)] = 2.0
    """Logit at which the largest size of a table or a layer begins; those of other choices begin at 0. With 2 it has
    7.4 times the chance of another one, within the limits, until the architecture's steps say otherwise. Smaller
    sizes learn sooner, as all larger ones train their weights too."""

    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Temperature of the Gumbel-softmax at the end of the warm-up."""

    last_temperature: Annotated[float, Field(gt=0)] = 0.2
    """Temperature at the last step, at most ``temperature``; it falls exponentially, whatever the number of steps."""

    cost_weight: Annotated[float, Field(ge=0)] = 0.0
    """Factor of log(expected cost / limit) in the loss of the architecture, for each limit. Limits are kept without
    it; it is for models that are to be cheaper than they must be."""

    @model_validator(mode="after")
    def _falls(self) -> SuperNetConfig:
        if self.last_temperature > self.temperature:
            raise ValueError(
                f"last_temperature is {self.last_temperature}, above temperature, {self.temperature}; it must not rise"
            )
        return self


class ArchitectureSearchConfig(Config):
    """What an architecture search chooses from, and how."""

    space: SpaceConfig = ComposedSpace.Config()
    """The layers of the model."""

    tables: TableChoices = TableChoices()
    """The sizes of the embedding tables."""

    limits: Limits = Limits()
    """The most that an architecture may cost."""

    supernet: SuperNetConfig = SuperNetConfig()
    """The training of the super-net."""

    drawn: Annotated[int, Field(ge=1, le=10_000)] = 32
    """Architectures that are drawn at the end, and compared with the weights of the super-net on validation."""

    retrained: Annotated[int, Field(ge=1, le=1000)] = 3
    """The best so many of these are trained from scratch."""


def read_search_config(path: Path | None) -> ArchitectureSearchConfig:
    """Returns the config that a YAML file holds below ``search:``; the default without a file.

    Raises:
        ConfigError: the file cannot be read, or a key or a value is not possible.
    """
    if path is None:
        return ArchitectureSearchConfig()
    try:
        damage = Damage(ConfigError, "give a readable UTF-8 YAML file")
        text = read_bytes(path, damage, limit=MAX_YAML_BYTES, follow=True)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file", "name a YAML file with `search:` and what it varies") from None
    values: Any = parse_yaml(text, path, Damage(ConfigError, "correct the YAML at that line"))
    if not isinstance(values, dict) or list(cast("dict[str, Any]", values)) != ["search"]:
        raise ConfigError(
            f"{path}: expected the key search alone, received {shorten(values)}",
            "write search: {space: {layers: 2}, limits: {flops: 100000}}",
        )
    section = cast("dict[str, Any]", values)["search"]
    return parse_config(ArchitectureSearchConfig, section if isinstance(section, dict) else {}, f"{path}: search")

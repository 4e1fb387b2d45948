"""The heads that turn a row's representation into one logit per task: the one place that lists them all.

Shape legend: B rows, N numbers of the representation, T tasks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import Field

from ziggurat.interactions.block import Block
from ziggurat.interactions.heads.mmoe import MMoE
from ziggurat.interactions.heads.ple import PLE
from ziggurat.interactions.heads.shared_bottom import SharedBottom

HeadConfig = Annotated[SharedBottom.Config | MMoE.Config | PLE.Config, Field(discriminator="name")]
"""The config of any head, told apart by ``name``."""

_HEADS: dict[str, Callable[[Any, int, int], Block]] = {"shared_bottom": SharedBottom, "mmoe": MMoE, "ple": PLE}


def build_head(config: HeadConfig, inputs: int, tasks: int) -> Block:
    """The head that ``config`` describes: (B, N) → (B, T), from ``inputs`` numbers to ``tasks`` logits."""
    return _HEADS[config.name](config, inputs, tasks)

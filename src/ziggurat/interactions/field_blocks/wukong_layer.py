"""The layer of Wukong: an ensemble of a factorization machine block and a linear compression."""

from __future__ import annotations

from collections.abc import Sequence

from ziggurat.interactions.field_blocks.composable import ComposableBlock
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.interactions.field_blocks.factorization_machine_block import FactorizationMachineBlock
from ziggurat.interactions.field_blocks.linear_compression import LinearCompression
from ziggurat.interactions.mlp import MLP


def check_outputs(fm_outputs: int, linear_outputs: int) -> None:
    """Checks that a layer has an output.

    Raises:
        ValueError: it has none.
    """
    if fm_outputs + linear_outputs == 0:
        raise ValueError("fm_outputs and linear_outputs are both 0, which leaves a layer empty; set one above 0")


def wukong_layer(
    fm_outputs: int,
    linear_outputs: int,
    rank: int | None,
    mlp: MLP.Config,
    *,
    attention: MLP.Config | None = None,
    shortcut: bool = True,
) -> Ensemble.Config:
    """Returns the config of one layer.

    Args:
        fm_outputs: fields that the factorization machine block emits; 0 leaves it out.
        linear_outputs: fields that the linear compression emits; 0 leaves it out.
        rank, mlp, attention: those of the factorization machine block.
        shortcut: whether the layer's input is added to its output.
    """
    fm: Sequence[ComposableBlock] = (
        [FactorizationMachineBlock.Config(outputs=fm_outputs, rank=rank, attention=attention, mlp=mlp)]
        if fm_outputs
        else []
    )
    linear: Sequence[ComposableBlock] = [LinearCompression.Config(outputs=linear_outputs)] if linear_outputs else []
    return Ensemble.Config(blocks=(*fm, *linear), combine="concat", shortcut=shortcut)

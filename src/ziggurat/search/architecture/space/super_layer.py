"""A layer of fields whose interaction is a decision: any block that a DHEN can combine, or none.

Shape legend: B rows, F fields in, F' fields out, D embedding dim.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.interactions.field_blocks.ensemble import Ensemble
from ziggurat.search.architecture.space.cost import PartCost
from ziggurat.search.architecture.space.decision import Mask

NONE = "none"
"""The choice that stands for a layer that is left out."""

Candidates = dict[str, Ensemble.Config]
"""Name of a choice -> the layer it stands for."""


def check_fields(candidates: Candidates, features: int, dim: int, where: str, *, optional: bool) -> int:
    """Returns F', the number of fields that every candidate emits.

    Args:
        candidates: the layers that may be chosen, at least one.
        features: F.
        dim: D.
        where: the key, for messages.
        optional: whether the layer may be left out, so that F' must be F.

    Raises:
        ConfigError: they emit different numbers of fields, or not F; the message names them.
    """
    import torch

    with torch.device("meta"):
        found = {name: Ensemble(config, features, dim).out_features for name, config in candidates.items()}
    wanted = features if optional else next(iter(found.values()))
    wrong = [f"{name}: {count}" for name, count in found.items() if count != wanted]
    if wrong:
        why = "as the layer may be left out" if optional else "as all blocks of a layer must emit equally many"
        raise ConfigError(
            f"{where}: expected {wanted} fields from each block, {why}; received {', '.join(wrong)}",
            f"set `outputs: {wanted}` in these blocks"
            + (", or optional: false for layers of another size" if optional else ""),
        )
    return wanted


class SuperLayer(nn.Module):
    """(B, F, D) → (B, F', D): Σ share · layer(X) over the candidates, and share · X if it may be left out.

    Args:
        candidates: the layers that may be chosen.
        features: F.
        dim: D.
        optional: whether the last choice leaves the layer out.
    """

    def __init__(self, candidates: Candidates, features: int, dim: int, *, optional: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Ensemble(config, features, dim) for config in candidates.values())
        self.optional = optional

    def forward(self, emb_BFD: Tensor, mask: Mask) -> Tensor:
        operations = [partial(layer, emb_BFD) for layer in self.layers]
        return mask.mix([*operations, *([lambda: emb_BFD] if self.optional else [])])


def layer_cost(candidates: Candidates, features: int, dim: int, shares: Tensor, cost: PartCost) -> Tensor:
    """Returns the expected cost of a layer; leaving it out costs nothing."""
    costs = [
        cost.of(
            f"layer {features} {dim} {config.model_dump_json()}",
            partial(Ensemble, config, features, dim),
            (features, dim),
        )
        for config in candidates.values()
    ]
    return (shares[: len(costs)] * shares.new_tensor(costs)).sum()


def names_of(blocks: Sequence[Ensemble.Config]) -> Candidates:
    """Returns layers by the titles of their blocks; equal ones are numbered."""
    found: Candidates = {}
    for config in blocks:
        title = " + ".join(block.title for block in config.blocks)
        name, number = title, 2
        while name in found:
            name, number = f"{title} {number}", number + 1
        found[name] = config
    return found

"""Rows of tables become the fields that a model sees: sequences encoded, vectors projected, groups put together.

Shape legend: B rows of the batch, S positions, W floats of a table's row, K vectors in it, F fields, D their width.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ziggurat.embeddings.layout import FieldSource, Layout
from ziggurat.embeddings.torchrec_terms import inner_name
from ziggurat.interactions.block import Block
from ziggurat.interactions.mlp import MLP
from ziggurat.interactions.sequences.sequence_pooling import build_sequence_encoder, target_of

DIRECT = ""
"""The name under which rows come that are the fields as they stand."""


@dataclass(frozen=True, slots=True)
class FieldCost:
    """What one learned step on the way from rows to fields costs; FLOPs forward, per example."""

    name: str
    parameters: int
    flops: int


class Fields(nn.Module):
    """emb_BFD from the rows of every feature. Its parameters are dense ones, and none where ``layout.direct``."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self._table_of = layout.table_of
        self.projections = nn.ModuleDict(
            {inner_name(spec.name): nn.Linear(spec.vector_dim, layout.dim, bias=False) for spec in layout.projected}
        )
        self.encoders = nn.ModuleDict(
            {
                _inner(feature): build_sequence_encoder(how.encoder, how.count, self._table_of[feature].dim)
                for feature, how in layout.positions.items()
            }
        )
        self.groups = nn.ModuleDict(
            {
                _inner(part.features[0]): MLP(
                    sum(self._table_of[f].dim for f in part.features), part.group.mlp, layout.dim
                )
                for part in layout.parts
                if part.group is not None
            }
        )

    def forward(self, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        """All fields, (B, F, D).

        Args:
            rows: feature -> (B, W), or (B, S, W) for a sequence with positions; or ``DIRECT`` alone.
            masks: sequence with positions -> which of them there are, (B, S).
        """
        if DIRECT in rows:
            return rows[DIRECT]
        pooled = {name: self._encode(name, rows, masks) if name in masks else rows[name] for name in rows}
        return torch.cat([self._fields(part, pooled) for part in self.layout.parts], dim=1)

    def costs(self) -> list[FieldCost]:
        """What is learned here, part by part."""
        costs = [
            _cost(f"{feature}, {how.encoder.name}", self.encoders[_inner(feature)])
            for feature, how in self.layout.positions.items()
        ]
        for part in self.layout.parts:
            if part.group is not None:
                costs.append(_cost(part.fields[0], self.groups[_inner(part.features[0])]))
        for spec in self.layout.projected:
            alone = [part for part in self.layout.parts if part.group is None and part.features[0] in spec.features]
            parameters = spec.vector_dim * self.layout.dim
            costs.append(
                FieldCost(f"projection of {spec.name}", parameters, 2 * parameters * spec.vectors * len(alone))
            )
        return costs

    def _encode(self, feature: str, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        target = target_of(self.layout.positions[feature].encoder)
        target_BW = None if target is None else rows[target]
        return self.encoders[_inner(feature)](rows[feature], masks[feature], target_BW)

    def _fields(self, part: FieldSource, pooled: Mapping[str, Tensor]) -> Tensor:
        """(B, K, D)."""
        if part.group is not None:
            row_BW = torch.cat([pooled[feature] for feature in part.features], dim=1)
            return self.groups[_inner(part.features[0])](row_BW).unsqueeze(1)
        row_BW, spec = pooled[part.features[0]], self._table_of[part.features[0]]
        vectors_ND = row_BW.reshape(-1, spec.vector_dim)
        if spec.vector_dim != self.layout.dim:
            vectors_ND = self.projections[inner_name(spec.name)](vectors_ND)
        return vectors_ND.unflatten(0, (-1, spec.vectors))


def _inner(feature: str) -> str:
    """A feature's name inside torch modules, where a bare one could be a method's."""
    return f"feature:{feature}"


def _cost(name: str, block: nn.Module) -> FieldCost:
    assert isinstance(block, Block)
    return FieldCost(name, sum(parameter.numel() for parameter in block.parameters()), block.flops())

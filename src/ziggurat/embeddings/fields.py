"""Turns rows of tables into the fields of a model: encodes sequences, projects vectors, combines groups.

Shape legend: B rows of the batch, S positions, W floats of a table's row, K vectors in it, F fields, D their width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ziggurat.embeddings.layout import FieldSource, Layout
from ziggurat.embeddings.torchrec_terms import inner_name
from ziggurat.interactions.block import Block, known_flops
from ziggurat.interactions.counted_flops import FlopsUnknown
from ziggurat.interactions.mlp import MLP
from ziggurat.interactions.piecewise_linear import PiecewiseLinearEmbedding

DIRECT = ""
"""The key of rows that already are the fields."""


@dataclass(frozen=True, slots=True)
class FieldCost:
    """The cost of one learned step from rows to fields; FLOPs are those of the forward pass per example, if known."""

    name: str
    parameters: int
    flops: int | None


def total_flops(costs: Sequence[FieldCost]) -> int:
    """Returns the FLOPs of all steps.

    Raises:
        FlopsUnknown: those of a step are not known; the message names it.
    """
    unknown = [cost.name for cost in costs if cost.flops is None]
    if unknown:
        raise FlopsUnknown(f"the FLOPs of {unknown[0]} are not known", "define its matmul_flops()")
    return sum(cost.flops or 0 for cost in costs)


class Fields(nn.Module):
    """Computes emb_BFD from the rows of every feature. Its parameters are dense; none exist if ``layout.direct``
    and no number becomes a field.

    Attributes:
        of_rows: the number of fields that are made of rows of tables; those of numbers follow.
    """

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self._table_of = layout.table_of
        self.projections = nn.ModuleDict(
            {inner_name(spec.name): nn.Linear(spec.vector_dim, layout.dim, bias=False) for spec in layout.projected}
        )
        self.encoders = nn.ModuleDict(
            {
                _inner(feature): how.encoder.build_checked(how.count, self._table_of[feature].dim)
                for feature, how in layout.positions.items()
            }
        )
        self.groups = nn.ModuleDict(
            {
                _inner(source.features[0]): MLP(
                    sum(self._table_of[f].dim for f in source.features), source.group.mlp, layout.dim
                )
                for source in layout.sources
                if source.group is not None
            }
        )
        self.of_rows = len(layout.fields) - len(layout.numbers)
        self._places = [layout.schema.dense.index(name) for name in layout.numbers]
        self.numbers = (
            PiecewiseLinearEmbedding(len(layout.numbers), layout.bins, layout.dim) if layout.numbers else None
        )

    def forward(self, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor], dense_BF: Tensor) -> Tensor:
        """Returns all fields, (B, F, D).

        Args:
            rows: feature -> (B, W), or (B, S, W) for a sequence with positions; or only ``DIRECT`` -> emb_BFD.
            masks: sequence with positions -> which positions exist, (B, S).
            dense_BF: the dense features, in the schema's order.
        """
        if self.numbers is None:
            return self._of_rows(rows, masks)
        whole = len(self._places) == dense_BF.shape[1]
        numbers_BFD = self.numbers(dense_BF if whole else dense_BF[:, self._places])
        return torch.cat([self._of_rows(rows, masks), numbers_BFD], dim=1) if self.layout.sources else numbers_BFD

    def _of_rows(self, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        """Returns the fields that are made of rows of tables."""
        if DIRECT in rows:
            return rows[DIRECT]
        pooled = {name: self._encode(name, rows, masks) if name in masks else rows[name] for name in rows}
        return torch.cat([self._fields(source, pooled) for source in self.layout.sources], dim=1)

    def costs(self) -> list[FieldCost]:
        """Returns the cost of each learned step."""
        costs = [
            _cost(f"{feature}, {how.encoder.title}", self.encoders[_inner(feature)])
            for feature, how in self.layout.positions.items()
        ]
        for source in self.layout.sources:
            if source.group is not None:
                costs.append(_cost(source.fields[0], self.groups[_inner(source.features[0])]))
        for spec in self.layout.projected:
            alone = [
                source for source in self.layout.sources if source.group is None and source.features[0] in spec.features
            ]
            parameters = spec.vector_dim * self.layout.dim
            costs.append(
                FieldCost(f"projection of {spec.name}", parameters, 2 * parameters * spec.vectors * len(alone))
            )
        if self.numbers is not None:
            costs.append(_cost("curves of numbers", self.numbers))
        return costs

    def _encode(self, feature: str, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        target = self.layout.positions[feature].encoder.target_feature
        target_BW = None if target is None else rows[target]
        return self.encoders[_inner(feature)](rows[feature], masks[feature], target_BW)

    def _fields(self, source: FieldSource, pooled: Mapping[str, Tensor]) -> Tensor:
        """Returns the fields of one source, (B, K, D)."""
        if source.group is not None:
            row_BW = torch.cat([pooled[feature] for feature in source.features], dim=1)
            return self.groups[_inner(source.features[0])](row_BW).unsqueeze(1)
        row_BW, spec = pooled[source.features[0]], self._table_of[source.features[0]]
        vectors_ND = row_BW.reshape(-1, spec.vector_dim)
        if spec.vector_dim != self.layout.dim:
            vectors_ND = self.projections[inner_name(spec.name)](vectors_ND)
        return vectors_ND.unflatten(0, (-1, spec.vectors))


def _inner(feature: str) -> str:
    """Returns a feature's name inside torch modules, prefixed so that it cannot collide with a method's."""
    return f"feature:{feature}"


def _cost(name: str, block: nn.Module) -> FieldCost:
    assert isinstance(block, Block)
    return FieldCost(name, sum(parameter.numel() for parameter in block.parameters()), known_flops(block))

"""The fields of a model as mixtures over the sizes of their tables.

Shape legend: B rows, E fields of the super-net (one for each feature and share of rows), F fields of the model, C
choices of rows, D the greatest width, d the greatest width below it.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ziggurat.embeddings.layout import Layout
from ziggurat.search.architecture.space.decision import Masks
from ziggurat.search.architecture.space.table_choices import TableSpace
from ziggurat.search.architecture.supernet.hashed_features import hashed_name


class TableMixture(nn.Module):
    """emb_BED → emb_BFD.

    A field is Σ_c share_c · (the vector from the table with the c-th share of the rows), truncated to the first
    numbers: number j has the share of the widths above j. What is narrower than D is padded with zeros, and projected
    by the first columns of one matrix for each table; what has the width D is taken as it is. By linearity that is the
    mixture of the projections. The matrix begins as the identity: with another one for each table, each draw of widths
    would compare the vectors of two columns in another way, and products of columns would average out.

    Args:
        space: the decisions of the tables.
        layout: the layout of the model.
        extended: the layout of the super-net.
    """

    def __init__(self, space: TableSpace, layout: Layout, extended: Layout) -> None:
        super().__init__()
        self.tables, self.dims, self.width = space.tables, space.dims, space.width
        narrow = [dim for dim in space.dims if dim < space.width]
        self.narrow = max(narrow, default=0)
        self.projections = nn.ModuleList(
            nn.Linear(self.narrow, self.width, bias=False) for _ in (self.tables if narrow else ())
        )
        for each in self.projections:
            assert isinstance(each, nn.Linear)
            nn.init.eye_(each.weight)
        names = list(extended.fields)
        self.direct = len(extended.fields) == len(layout.fields) and not narrow
        searched = {feature: number for number, table in enumerate(self.tables) for feature in table.features}
        single = {
            source.fields[0]: source.features[0]
            for source in layout.sources
            if source.group is None and len(source.fields) == 1
        }
        self.places: list[int] = []  # of the searched fields among those of the model
        self.table_of_place: list[int] = []
        self.choices = max((len(table.shares) for table in self.tables), default=1)
        sources: list[list[int]] = []
        kept: list[int] = []
        self.kept_places: list[int] = []
        for place, field in enumerate(layout.fields):
            number = searched.get(single.get(field, ""))
            if number is None:
                kept.append(names.index(field))
                self.kept_places.append(place)
                continue
            found = [names.index(hashed_name(field, share)) for share in self.tables[number].shares]
            self.places.append(place)
            self.table_of_place.append(number)
            sources.append(found + found[:1] * (self.choices - len(found)))
        order = torch.tensor([*self.places, *self.kept_places], dtype=torch.int64).argsort()
        self.register_buffer("order", order, persistent=False)
        self.register_buffer("kept", torch.tensor(kept, dtype=torch.int64), persistent=False)
        self.register_buffer("sources", torch.tensor(sources, dtype=torch.int64).reshape(-1), persistent=False)
        self.register_buffer("of_place", torch.tensor(self.table_of_place, dtype=torch.int64), persistent=False)
        below = [[float(column < dim < self.width) for column in range(self.narrow)] for dim in self.dims]
        within = [[float(column < dim) for column in range(self.width)] for dim in self.dims]
        self.register_buffer("within", torch.tensor(within), persistent=False)
        self.register_buffer("below", torch.tensor(below).reshape(len(self.dims), self.narrow), persistent=False)
        self.order: Tensor
        self.kept: Tensor
        self.sources: Tensor
        self.of_place: Tensor
        self.below: Tensor
        self.within: Tensor

    def forward(self, emb_BED: Tensor, masks: Masks) -> Tensor:
        if self.direct or not self.places:
            return emb_BED
        rows_BFD = emb_BED[:, self.sources].unflatten(1, (-1, self.choices))
        shares_FC = self._shares(masks, "rows", self.choices, emb_BED.device)
        fields_BFD = (rows_BFD * shares_FC.unsqueeze(-1)).sum(2) if self.choices > 1 else rows_BFD.squeeze(2)
        if self.narrow:
            fields_BFD = self._narrowed(fields_BFD, masks)
        return torch.cat([fields_BFD, emb_BED[:, self.kept]], dim=1)[:, self.order]

    def used(self, emb_BED: Tensor, masks: Masks) -> Tensor:
        """Returns the vectors times what the masks take of each of their numbers: 0 of tables and columns that are not
        chosen, so that a penalty leaves these alone."""
        if self.direct or not self.places:
            return emb_BED
        taken_FCD = self._shares(masks, "rows", self.choices, emb_BED.device).detach().unsqueeze(-1)
        if self.narrow:
            columns_FD = self._shares(masks, "dim", len(self.dims), emb_BED.device).detach() @ self.within
            taken_FCD = taken_FCD * columns_FD.unsqueeze(1)
        taken_FCD = taken_FCD.expand(-1, -1, self.width).to(emb_BED.dtype)
        parts_ED = emb_BED.new_ones(emb_BED.shape[1:]).index_fill(0, self.sources, 0.0)
        return emb_BED * parts_ED.index_add(0, self.sources, taken_FCD.flatten(0, 1))

    def _narrowed(self, fields_BFD: Tensor, masks: Masks) -> Tensor:
        shares_FK = self._shares(masks, "dim", len(self.dims), fields_BFD.device)
        truncated_BFd = fields_BFD[..., : self.narrow] * (shares_FK @ self.below)
        weights: list[Tensor] = [each.weight for each in self.projections]  # pyright: ignore[reportAssignmentType]
        weights_FdD = torch.stack(weights)[self.of_place].transpose(1, 2)
        projected_BFD = torch.bmm(truncated_BFd.transpose(0, 1), weights_FdD).transpose(0, 1)
        return projected_BFD + shares_FK[:, -1:] * fields_BFD

    def _shares(self, masks: Masks, kind: str, count: int, device: torch.device) -> Tensor:
        """Returns for each searched field the shares of its table's choices, (F, count), padded with 0."""
        shares = [masks[f"table.{table.name}.{kind}"].shares for table in self.tables]
        shares_TC = torch.stack([nn.functional.pad(each, (0, count - len(each))) for each in shares])
        return shares_TC.to(device)[self.of_place]

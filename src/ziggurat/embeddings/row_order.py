"""Rows that lie by falling frequency: from ids to places, and back to ids where weights leave the tables.

The order is made where ids are looked up, whatever brought them – dataset, readers, prediction –, so that batches,
checkpoints and messages know a row by its id alone.

Shape legend: R rows of a table, L ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.plan import Plan
from ziggurat.core.row_order import Ranks, dealt_places
from ziggurat.core.tables import TableSpec
from ziggurat.parallel.tensor_slices import TensorSlice


class RowOrder:
    """The order of the rows of some tables; false where there are none.

    Args:
        tables: that are looked up together.
        plan: says which of them are ordered, and into how many ranges of rows each is cut.
        ranks: of each of these, its rows' ranks by falling frequency.
        device: of the ids.
    """

    def __init__(
        self, tables: Sequence[TableSpec], plan: Plan, ranks: Mapping[str, Ranks], device: torch.device
    ) -> None:
        ordered = [spec for spec in tables if plan.placements[spec.name].fast_rows is not None]
        missing = [spec.name for spec in ordered if spec.name not in ranks]
        assert not missing, f"the plan orders the rows of {missing}, and nothing says how"
        self._places: dict[str, Tensor] = {}
        self._places_of: dict[str, Tensor] = {}
        for spec in ordered:
            places = torch.from_numpy(dealt_places(spec.rows, plan.row_parts(spec.name)))
            self._places[spec.name] = places[torch.from_numpy(ranks[spec.name]).long()].int()
            self._places_of |= dict.fromkeys(spec.keys, self._places[spec.name].to(device))
        self._ids: dict[tuple[str, int, int], Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._places)

    def placed(self, ids: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """The places of the rows, in place of their ids, which must be within their tables."""
        if not self:
            return ids
        values_L = ids.values().clone()
        for key, (first, last) in zip(ids.keys(), pairwise(ids.offset_per_key()), strict=True):
            places_R = self._places_of.get(key)
            if places_R is not None:
                values_L[first:last] = places_R.index_select(0, values_L[first:last])
        return KeyedJaggedTensor(keys=ids.keys(), values=values_L, lengths=ids.lengths(), stride=ids.stride())

    def of_piece(self, tensor_slice: TensorSlice) -> TensorSlice:
        """A piece of such a table, or of a state of one, that knows the ids of its rows."""
        name = tensor_slice.name if tensor_slice.name in self._places else tensor_slice.name.rpartition("/")[0]
        if name not in self._places:
            return tensor_slice
        first, size = tensor_slice.first[0], tensor_slice.tensor.shape[0]
        key = (name, first, size)
        if key not in self._ids:
            ids_R = torch.empty_like(self._places[name])
            ids_R[self._places[name].long()] = torch.arange(len(ids_R), dtype=torch.int32)
            self._ids[key] = ids_R[first : first + size].clone()
        return replace(tensor_slice, rows=self._ids[key])

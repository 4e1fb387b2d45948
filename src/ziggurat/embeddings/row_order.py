"""Rows stored by falling frequency: maps ids to positions, and back to ids where weights leave the tables.

Ids are mapped at the lookup, whether they come from a dataset, a reader or a prediction. So batches, checkpoints and
messages identify a row by its id alone.

Shape legend: R rows of a table, L ids.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.plan import Plan
from ziggurat.core.row_order import FrequencyRanks, Positions, round_robin_positions, tier_positions
from ziggurat.core.tables import TableSpec
from ziggurat.parallel.tensor_slices import TensorSlice


class RowOrder:
    """The order of the rows of some tables; falsy if the plan orders none.

    Args:
        tables: the tables that are looked up together.
        plan: which of them are ordered, and into how many row ranges each is split.
        ranks: ordered table -> the rank of each of its rows by falling frequency.
        device: the device of the ids.
    """

    def __init__(
        self, tables: Sequence[TableSpec], plan: Plan, ranks: Mapping[str, FrequencyRanks], device: torch.device
    ) -> None:
        ordered = [spec for spec in tables if plan.placements[spec.name].ordered]
        missing = [spec.name for spec in ordered if spec.name not in ranks]
        assert not missing, f"the plan orders the rows of {missing}, but row_ranks lacks their order"
        self._positions: dict[str, Tensor] = {}
        self._positions_here: dict[str, Tensor] = {}
        self._table_of_key: dict[str, str] = {}
        for spec in ordered:
            positions = torch.from_numpy(_positions(plan, spec))
            self._positions[spec.name] = positions[torch.from_numpy(ranks[spec.name]).long()].int()
            self._positions_here[spec.name] = self._positions[spec.name].to(device)
            self._table_of_key |= dict.fromkeys(spec.keys, spec.name)
        self._ids: dict[tuple[str, int, int], Tensor] = {}

    def __bool__(self) -> bool:
        return bool(self._positions)

    @property
    def held_bytes(self) -> int:
        """Bytes of the positions of all ids and of the ids of this rank's rows, which the rank holds beside them."""
        tensors = [*self._positions.values(), *self._positions_here.values(), *self._ids.values()]
        return sum({each.data_ptr(): each.nbytes for each in tensors}.values())  # on the CPU, two are the same

    def to_positions(self, ids: KeyedJaggedTensor) -> KeyedJaggedTensor:
        """Replaces ids by the positions of their rows; ids must be within their tables."""
        if not self:
            return ids
        values_L, starts = ids.values().clone(), ids.offset_per_key()
        tables = groupby(enumerate(ids.keys()), lambda each: self._table_of_key.get(each[1]))
        for table, run in tables:  # the positions of a sequence are adjacent keys of one table
            numbers = [number for number, _ in run]
            if table is not None:
                ids_L = values_L[starts[numbers[0]] : starts[numbers[-1] + 1]]
                ids_L.copy_(self._positions_here[table].index_select(0, ids_L))
        return KeyedJaggedTensor(keys=ids.keys(), values=values_L, lengths=ids.lengths(), stride=ids.stride())

    def with_row_ids(self, tensor_slice: TensorSlice) -> TensorSlice:
        """Returns the tensor slice with the ids of its rows if it belongs to an ordered table or to a state of one."""
        name = tensor_slice.name if tensor_slice.name in self._positions else tensor_slice.name.rpartition("/")[0]
        if name not in self._positions:
            return tensor_slice
        first, size = tensor_slice.first[0], tensor_slice.tensor.shape[0]
        return replace(tensor_slice, rows=self.row_ids(name, first, size))

    def row_ids(self, table: str, first: int, size: int) -> Tensor:
        """Returns the ids of the rows of an ordered table at ``size`` positions from ``first`` on, int32 (size,)."""
        key = (table, first, size)
        if key not in self._ids:
            ids_R = torch.empty_like(self._positions[table])
            ids_R[self._positions[table].long()] = torch.arange(len(ids_R), dtype=torch.int32)
            self._ids[key] = ids_R[first : first + size].clone()
        return self._ids[key]


def _positions(plan: Plan, spec: TableSpec) -> Positions:
    placement = plan.placements[spec.name]
    if placement.sharding != "row_tiers":
        return round_robin_positions(spec.rows, plan.row_parts(spec.name))
    copied, hosts, _ = placement.tiers(spec.rows)
    return tier_positions(spec.rows, copied.size, hosts.size, plan.local_size, plan.world_size)

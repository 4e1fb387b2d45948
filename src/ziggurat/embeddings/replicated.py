"""Tables that every rank holds whole: replicated by the plan, or with an optimizer that has no FBGEMM kernel.

With several ranks the gradients of whole tables are exchanged after the backward pass, in one all-reduce. All ranks
then take the same step and so stay equal. That suits small tables.

- ``rows: touched``: the states of rows that are not in the batch do not change, as in FBGEMM's kernels.
- ``rows: all`` (Adam): as ``torch.optim.Adam`` on the dense gradient of the table, with ``l2`` as ``weight_decay``.

Shape legend: L ids, U distinct ids, R rows, D dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.core.plan import Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.row_table import RowTable, add_by_row, summed_by_row


class ReplicatedTable(RowTable):
    """One whole table."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec, torch.zeros(spec.rows, spec.dim))
        self._pending: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def update(self, ids_L: Tensor, grad_LD: Tensor) -> None:
        """Takes the step at once on a single rank; on several, keeps ids and gradients until :func:`exchange`."""
        if _world_size() > 1:
            self._pending = (ids_L, grad_LD)
        elif self._all_rows:
            self._step_all(add_by_row(torch.zeros_like(self.weight_RD), ids_L, grad_LD))
        else:
            self.step(*summed_by_row(ids_L, grad_LD))

    @property
    def exchanged_floats(self) -> int:
        """The number of floats that this table contributes to the all-reduce."""
        return self.spec.rows * (self.spec.dim + 1)

    @torch.no_grad()
    def add_gradients(self, buffer: Tensor) -> None:
        """Adds this rank's part to the buffer: the gradient of every row, then which rows were touched."""
        if self._pending is None:
            return
        ids_L, grad_LD = self._pending
        self._pending = None
        grad_RD, touched_R = self._parts(buffer)
        add_by_row(grad_RD, ids_L, grad_LD)
        touched_R[ids_L] = 1

    @torch.no_grad()
    def apply_gradients(self, summed: Tensor) -> None:
        """Takes the step from the buffers summed over the ranks; gradients are averaged, as for all other tables."""
        grad_RD, touched_R = self._parts(summed)
        grad_RD.div_(_world_size())
        if self._all_rows:
            self._step_all(grad_RD)
            return
        rows_U = touched_R.nonzero().squeeze(1)
        self.step(rows_U, grad_RD[rows_U])

    def _parts(self, floats: Tensor) -> tuple[Tensor, Tensor]:
        rows, dim = self.spec.rows, self.spec.dim
        return floats[: rows * dim].view(rows, dim), floats[rows * dim :]

    def _step_all(self, grad_RD: Tensor) -> None:
        if self.spec.optimizer["l2"]:
            grad_RD.add_(self.weight_RD, alpha=self.spec.optimizer["l2"])
        self.step(None, grad_RD)

    @property
    def _all_rows(self) -> bool:
        optimizer = self.spec.optimizer
        return optimizer["name"] == "adam" and optimizer["rows"] == "all"


def exchange(tables: Sequence[ReplicatedTable]) -> None:
    """Sums the gradients of these tables over several ranks and takes the step; to be called after the backward
    pass."""
    if not tables:
        return
    floats = torch.zeros(sum(table.exchanged_floats for table in tables), device=tables[0].weight_RD.device)
    parts = floats.split([table.exchanged_floats for table in tables])
    for table, part in zip(tables, parts, strict=True):
        table.add_gradients(part)
    dist.all_reduce(floats)
    for table, part in zip(tables, parts, strict=True):
        table.apply_gradients(part)


def must_replicate(spec: TableSpec, device_type: str) -> bool:
    """Returns whether every rank must hold the whole table because FBGEMM has no kernel for its optimizer."""
    optimizer = spec.optimizer
    return optimizer["name"] == "adam" and (device_type == "cpu" or optimizer["rows"] == "all")


def is_replicated(spec: TableSpec, device: torch.device, sharding: Sharding) -> bool:
    """Returns whether a table is a :class:`ReplicatedTable`, by the plan or because it must be."""
    return must_replicate(spec, device.type) or sharding == "data_parallel"


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1

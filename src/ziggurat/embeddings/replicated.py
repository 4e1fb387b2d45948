"""Tables that every rank holds whole: replicated by the plan, or of an optimizer that FBGEMM has no kernel for.

Several ranks exchange the gradients of whole tables behind the backward pass (one all-reduce for all of them), make the
same step and so stay equal; that suits small tables.

- ``rows: touched``: the states of a row that is not in the batch stay as they are, as in FBGEMM's kernels.
- ``rows: all`` (Adam): what ``torch.optim.Adam`` does with the dense gradient of the table, ``l2`` as its
  ``weight_decay``.

Shape legend: L ids, U distinct ids, R rows, D dim.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.core.plan import Sharding
from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.row_table import RowTable, summed_by_row


class ReplicatedTable(RowTable):
    """One whole table."""

    def __init__(self, spec: TableSpec) -> None:
        super().__init__(spec, torch.zeros(spec.rows, spec.dim))
        self._pending: tuple[Tensor, Tensor] | None = None

    @torch.no_grad()
    def update(self, ids_L: Tensor, grad_LD: Tensor) -> None:
        """One step, at once where there is one rank."""
        if _world_size() > 1:
            self._pending = (ids_L, grad_LD)
        elif self._all_rows:
            self._step_all(torch.zeros_like(self.weight_RD).index_add_(0, ids_L, grad_LD))
        else:
            self.step(*summed_by_row(ids_L, grad_LD))

    @property
    def floats(self) -> int:
        """How many it has to tell the other ranks behind a backward pass."""
        return self.spec.rows * (self.spec.dim + 1)

    @torch.no_grad()
    def tell(self, into: Tensor) -> None:
        """Add what this rank's batch came to: the gradient of every row, then which rows were touched."""
        if self._pending is None:
            return
        ids_L, grad_LD = self._pending
        self._pending = None
        grad_RD, touched_R = self._parts(into)
        grad_RD.index_add_(0, ids_L, grad_LD)
        touched_R[ids_L] = 1

    @torch.no_grad()
    def hear(self, summed: Tensor) -> None:
        """The step of all ranks, from the sum of what they told. Gradients are meant over the ranks, as those of the
        other tables are."""
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
    """Behind the backward pass of several ranks: sum the gradients of these tables over them, and make the step."""
    if not tables:
        return
    floats = torch.zeros(sum(table.floats for table in tables), device=tables[0].weight_RD.device)
    parts = floats.split([table.floats for table in tables])
    for table, part in zip(tables, parts, strict=True):
        table.tell(part)
    dist.all_reduce(floats)
    for table, part in zip(tables, parts, strict=True):
        table.hear(part)


def must_replicate(spec: TableSpec, device_type: str) -> bool:
    """Whether every rank has to hold the table whole, because FBGEMM cannot do what its optimizer says."""
    optimizer = spec.optimizer
    return optimizer["name"] == "adam" and (device_type == "cpu" or optimizer["rows"] == "all")


def is_replicated(spec: TableSpec, device: torch.device, sharding: Sharding) -> bool:
    """Whether a table is a :class:`ReplicatedTable`: the plan says so, or there is no other way."""
    return must_replicate(spec, device.type) or sharding == "data_parallel"


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1

"""A whole model as a module from ids to predictions, with tensors alone as inputs, as ONNX needs it.

Shape legend: B rows, F dense features, L ids of a row, padded with -1, D numbers of a table's row, S positions, T
labels, C columns of all labels, M members of an ensemble.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from ziggurat.embeddings.layout import Layout
from ziggurat.exporting.dense_graph import DenseColumns
from ziggurat.objectives.losses import Log1p, Poisson, Quantile, Tweedie
from ziggurat.objectives.task import Task, column_slices
from ziggurat.training.recommender import DensePart


class ColumnsOfIds(nn.Module):
    """Computes columns_BC from dense_BF and the ids of each feature, in the order of the schema.

    Ids are int64: (B,) of a categorical feature; (B, L) of bags and pooled sequences, padded with -1; (B, S) of
    sequences with positions, the most recent first, padded with -1.

    Args:
        part: the dense part.
        layout: the layout of its inputs.
        tables: table -> its rows (R, D).
    """

    def __init__(self, part: DensePart, layout: Layout, tables: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.dense = DenseColumns(part)
        self._layout = layout
        self.tables = nn.ParameterList([nn.Parameter(tables[spec.name], False) for spec in layout.tables])
        self._number = {spec.name: number for number, spec in enumerate(layout.tables)}

    def forward(self, dense_BF: Tensor, *ids: Tensor) -> Tensor:
        rows: dict[str, Tensor] = {}
        masks: dict[str, Tensor] = {}
        schema, table_of = self._layout.schema, self._layout.table_of
        for name, found in zip(schema.sparse, ids, strict=True):
            spec = table_of[name]
            table_RD = self.tables[self._number[spec.name]]
            if name in schema.categorical:
                rows[name] = table_RD[found]
                continue
            exists_BL = found >= 0
            rows_BLD = table_RD[found.clamp(min=0)] * exists_BL.unsqueeze(2)
            if name in self._layout.positions:
                rows[name], masks[name] = rows_BLD, exists_BL
            elif spec.pooling == "sum":
                rows[name] = rows_BLD.sum(1)
            else:
                rows[name] = rows_BLD.sum(1) / exists_BL.sum(1, keepdim=True).clamp(min=1)
        return self.dense(dense_BF, rows, masks)


class WholeModel(nn.Module):
    """Computes predictions_BT from dense_BF and ids, which :class:`ColumnsOfIds` describes.

    Args:
        members: the model, or the members of an ensemble, whose columns are averaged.
        tasks: the labels.
        weights_MC: the weight of each column of each member; None: there is one, whose columns are taken as they are.
    """

    def __init__(
        self,
        members: Sequence[ColumnsOfIds],
        tasks: Sequence[Task],
        weights_MC: Sequence[Sequence[float]] | None = None,
    ) -> None:
        super().__init__()
        self.members, self._tasks = nn.ModuleList(members), tuple(tasks)
        weights = [] if weights_MC is None else [list(each) for each in weights_MC]
        self.weights_MC = nn.Buffer(torch.tensor(weights, dtype=torch.float64))

    def forward(self, dense_BF: Tensor, *ids: Tensor) -> Tensor:
        columns = [member(dense_BF, *ids) for member in self.members]
        columns_BC = columns[0]
        if len(self.weights_MC):
            weighted = [each.double() * self.weights_MC[number] for number, each in enumerate(columns)]
            columns_BC = torch.stack(weighted).sum(0).float()
        parts = [
            _prediction(task, columns_BC[:, at])
            for task, at in zip(self._tasks, column_slices(self._tasks), strict=True)
        ]
        return torch.stack(parts, dim=1)


def _prediction(task: Task, columns_BC: Tensor) -> Tensor:
    """Returns the prediction (B,) in the label's units; see :meth:`Task.predictions`."""
    if task.is_probability:
        return columns_BC[:, 0].sigmoid()
    if task.kind == "ordinal":  # the lowest level, and the step to each further one where it is exceeded
        steps = [after - before for before, after in zip(task.levels, task.levels[1:], strict=False)]
        return task.levels[0] + (columns_BC.sigmoid() * columns_BC.new_tensor(steps)).sum(1)
    match task.loss:
        case Log1p():
            return (columns_BC[:, 0].exp() - 1).clamp(min=0)
        case Poisson() | Tweedie():
            return columns_BC[:, 0].exp()
        case Quantile():
            return columns_BC.sort(dim=1).values[:, task.middle]
        case _:
            return columns_BC[:, 0]


def inputs_of(layout: Layout, size: int = 3, length: int = 2) -> tuple[Tensor, ...]:
    """Returns inputs of a :class:`WholeModel`, of zeros."""
    dense = torch.zeros(size, len(layout.schema.dense))
    return dense, *(torch.zeros(_shape(layout, name, size, length), dtype=torch.int64) for name in layout.schema.sparse)


def varying(layout: Layout, most_rows: int, most_ids: int) -> tuple[dict[int, torch.export.Dim], ...]:
    """Returns which sizes of the inputs vary: the rows, and the ids of each bag and pooled sequence."""
    rows = torch.export.Dim("rows", min=2, max=most_rows)
    found: list[dict[int, torch.export.Dim]] = [{0: rows}]
    for number, name in enumerate(layout.schema.sparse):
        pooled = name not in layout.schema.categorical and name not in layout.positions
        ids = {1: torch.export.Dim(f"ids_{number}", min=1, max=most_ids)} if pooled else {}
        found.append({0: rows, **ids})
    return tuple(found)


def _shape(layout: Layout, name: str, size: int, length: int) -> tuple[int, ...]:
    if name in layout.schema.categorical:
        return (size,)
    return (size, layout.positions[name].count if name in layout.positions else length)

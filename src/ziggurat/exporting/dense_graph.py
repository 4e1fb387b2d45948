"""The dense part of a recommender as a graph that takes looked-up rows, with its tensors.

Shape legend: B rows, F dense features, W numbers of a table's row, S positions, C columns of all labels.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ziggurat.core.errors import ConfigError
from ziggurat.embeddings.fields import DIRECT
from ziggurat.embeddings.layout import Layout
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.serving.artefact.dense_program import program_files, unknown_operators
from ziggurat.training.recommender import DensePart

MOST_ROWS = 1 << 24
"""Most rows of a request that the graph takes."""
_TRACED_ROWS = 3


class DenseColumns(nn.Module):
    """A dense part that returns its columns alone, (B, C)."""

    def __init__(self, part: DensePart) -> None:
        super().__init__()
        self.part = copy.copy(part)
        modules = {name: each for name, each in part.__dict__["_modules"].items() if name != "model"}
        self.part.__dict__["_modules"] = modules  # the model is also what is called: its weights are stored once

    def forward(self, dense_BF: Tensor, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        if not rows:
            rows = {DIRECT: dense_BF.new_zeros(dense_BF.shape[0], 0, self.part.fields.layout.dim)}
        return self.part(dense_BF, rows, masks)[0]


def dense_files(part: DensePart, layout: Layout) -> tuple[bytes, dict[str, Tensor]]:
    """Returns the graph of a dense part as JSON, and its tensors.

    Its inputs are dense_BF, feature -> rows (B, W) or of a sequence with positions (B, S, W), and the masks (B, S) of
    such sequences, all features in the order of the schema.

    Raises:
        ConfigError: a part from outside the package is no fixed graph of tensor operations.
    """
    dense, rows, masks = example(layout)
    varies = {0: torch.export.Dim("B", min=2, max=MOST_ROWS)}
    sizes: Any = (varies, dict.fromkeys(rows, varies), dict.fromkeys(masks, varies))
    try:
        files = program_files(DenseColumns(part).eval(), (dense, rows, masks), sizes)
    except Exception as error:
        raise _no_graph(part, next(iter(str(error).strip().splitlines()), type(error).__name__)) from error
    unknown = unknown_operators(files[0])
    if unknown:
        raise _no_graph(part, f"it uses {', '.join(unknown)}, which an export does not contain")
    return files


def trained_tensors(part: DensePart, saved: Iterable[TensorSlice], names: Iterable[str]) -> dict[str, str]:
    """Returns tensor of a graph -> its name in the checkpoints, for those that training changes.

    Args:
        part: the dense part that the graph was made of.
        saved: the live tensors that checkpoints hold.
        names: the tensors of the graph, as :func:`dense_files` names them.
    """
    module = DenseColumns(part)
    own = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    saved_as = {id(each.tensor): each.name for each in saved}
    found = {name: saved_as.get(id(own.get(name.partition("/")[2]))) for name in names}
    return {name: saved_name for name, saved_name in found.items() if saved_name is not None}


def _no_graph(part: DensePart, reason: str) -> ConfigError:
    return ConfigError(
        f"model {type(part.model).__name__}: cannot be exported: {reason[:300]}",
        "write its forward with operations on tensors alone, whose course does not depend on their numbers; "
        "`ziggurat predict` takes any model",
    )


def example(layout: Layout, size: int = _TRACED_ROWS) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
    """Returns inputs of a dense part, of zeros: dense_BF, rows and masks."""
    rows, masks = dict[str, Tensor](), dict[str, Tensor]()
    for name in layout.schema.sparse:
        dim, how = layout.table_of[name].dim, layout.positions.get(name)
        rows[name] = torch.zeros((size, dim) if how is None else (size, how.count, dim))
        if how is not None:
            masks[name] = torch.ones(size, how.count, dtype=torch.bool)
    return torch.zeros(size, len(layout.schema.dense)), rows, masks

"""The dense part of a recommender, or of all members of an ensemble, as a graph that takes looked-up rows.

Shape legend: B rows, F dense features, W numbers of a table's row, S positions, C columns of all labels, M members.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
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


class CombinedColumns(nn.Module):
    """The weighted mean of the columns of several dense parts, (B, C), as an ensemble computes it.

    Args:
        parts: the dense part of each member.
        layouts: the layouts of their inputs.
        prefixes: what the names of each member's inputs begin with.
        weights_MC: the weight of each column of each member.
    """

    def __init__(
        self,
        parts: Sequence[DensePart],
        layouts: Sequence[Layout],
        prefixes: Sequence[str],
        weights_MC: Sequence[Sequence[float]],
    ) -> None:
        super().__init__()
        self.members = nn.ModuleList([DenseColumns(part) for part in parts])
        self._names = [
            {f"{prefix}{name}": name for name in layout.schema.sparse}
            for layout, prefix in zip(layouts, prefixes, strict=True)
        ]
        self.weights_MC = nn.Buffer(torch.tensor(weights_MC, dtype=torch.float64))

    def forward(self, dense_BF: Tensor, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]) -> Tensor:
        sum_BC: Tensor | None = None
        for member, names, weights_C in zip(self.members, self._names, self.weights_MC.unbind(), strict=True):
            own_rows, own_masks = (
                {name: found[given] for given, name in names.items() if given in found} for found in (rows, masks)
            )
            weighted_BC = member(dense_BF, own_rows, own_masks).double() * weights_C
            sum_BC = weighted_BC if sum_BC is None else sum_BC + weighted_BC
        assert sum_BC is not None
        return sum_BC.float()


def dense_files(part: DensePart, layout: Layout) -> tuple[bytes, dict[str, Tensor]]:
    """Returns the graph of a dense part as JSON, and its tensors.

    Its inputs are dense_BF, feature -> rows (B, W) or of a sequence with positions (B, S, W), and the masks (B, S) of
    such sequences, all features in the order of the schema.

    Raises:
        ConfigError: a part from outside the package is no fixed graph of tensor operations.
    """
    return _files(DenseColumns(part), example(layout), type(part.model).__name__)


def combined_files(
    parts: Sequence[DensePart],
    layouts: Sequence[Layout],
    prefixes: Sequence[str],
    weights_MC: Sequence[Sequence[float]],
) -> tuple[bytes, dict[str, Tensor]]:
    """Returns the graph of the dense parts of an ensemble as JSON, and its tensors.

    Its inputs are those of :func:`dense_files`, of one member after another, named with the prefixes.

    Args:
        parts, layouts, prefixes, weights_MC: as of :class:`CombinedColumns`.

    Raises:
        ConfigError: a part from outside the package is no fixed graph of tensor operations.
    """
    dense, rows, masks = example(layouts[0])[0], dict[str, Tensor](), dict[str, Tensor]()
    for layout, prefix in zip(layouts, prefixes, strict=True):
        _, own_rows, own_masks = example(layout)
        rows |= {f"{prefix}{name}": each for name, each in own_rows.items()}
        masks |= {f"{prefix}{name}": each for name, each in own_masks.items()}
    models = ", ".join(dict.fromkeys(type(part.model).__name__ for part in parts))
    return _files(CombinedColumns(parts, layouts, prefixes, weights_MC), (dense, rows, masks), models)


def _files(
    module: nn.Module, inputs: tuple[Tensor, dict[str, Tensor], dict[str, Tensor]], model: str
) -> tuple[bytes, dict[str, Tensor]]:
    _, rows, masks = inputs
    varies = {0: torch.export.Dim("B", min=2, max=MOST_ROWS)}
    sizes: Any = (varies, dict.fromkeys(rows, varies), dict.fromkeys(masks, varies))
    try:
        files = program_files(module.eval(), inputs, sizes)
    except Exception as error:
        raise _no_graph(model, next(iter(str(error).strip().splitlines()), type(error).__name__)) from error
    unknown = unknown_operators(files[0])
    if unknown:
        raise _no_graph(model, f"it uses {', '.join(unknown)}, which an export does not contain")
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


def _no_graph(model: str, reason: str) -> ConfigError:
    return ConfigError(
        f"model {model}: cannot be exported: {reason[:300]}",
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

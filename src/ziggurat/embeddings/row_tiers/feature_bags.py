"""Spreads the distinct rows of a batch over the bags of each feature, and sums the gradients of bags by row.

Positions of sequences are bags of one id at most. They take their row as it is, in pieces: where histories are short
nearly all of them are empty, and a number for each bag would be held beside the rows.

Shape legend: B examples, S positions, L ids, N bags, U distinct ids, D dim.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from ziggurat.core.tables import TableSpec
from ziggurat.embeddings.row_table import add_by_row
from ziggurat.embeddings.row_tiers.distinct_rows import DistinctRows

_PIECE = 2048
"""Bags of one id at most that are spread at a time."""


class FeatureBags(ABC):
    """The bags of a feature in a batch.

    Attributes:
        feature: its name.
    """

    feature: str

    @abstractmethod
    def pooled(self, rows_UD: Tensor) -> Tensor:
        """Returns the rows of the bags: (B, W), or (B, S, W) for a sequence with positions.

        Args:
            rows_UD: the distinct rows, and a row of zeros after them.
        """

    @abstractmethod
    def add_gradients(self, grad: Tensor, sums_UD: Tensor) -> None:
        """Adds the gradients of what :meth:`pooled` returned to those of the distinct rows."""


def bags_of_features(
    spec: TableSpec, distinct: DistinctRows, lengths: Sequence[tuple[int, Tensor]], size: int
) -> list[FeatureBags]:
    """Returns the bags of each feature of a table.

    Args:
        spec: the table.
        distinct: its distinct rows, and for each id which of them it is.
        lengths: the number of each feature's ids, and the lengths of its bags.
        size: B.
    """
    inverses = distinct.inverse_L.split([count for count, _ in lengths])
    single = all(int(lengths_N.max()) <= 1 for _, lengths_N in lengths if len(lengths_N))
    found: list[FeatureBags] = []
    for feature, inverse_L, (_, lengths_N) in zip(spec.features, inverses, lengths, strict=True):
        has_positions = feature in spec.positions
        if single:
            found.append(_single_ids(feature, inverse_L, lengths_N, spec.positions.get(feature)))
        else:
            found.append(
                _ManyIds(feature, spec.pooling == "mean", inverse_L, lengths_N, size if has_positions else None)
            )
    return found


@dataclass(frozen=True, slots=True)
class _ManyIds(FeatureBags):
    """Bags of any number of ids.

    Attributes:
        mean: whether they are pooled by their means.
        inverse_L: for each id, which distinct row it is.
        lengths_N: the ids of each bag.
        size: B, of a sequence with positions; its bags are in order of position.
    """

    feature: str
    mean: bool
    inverse_L: Tensor
    lengths_N: Tensor
    size: int | None

    def pooled(self, rows_UD: Tensor) -> Tensor:
        lengths_N = self.lengths_N.long()
        offsets_N = lengths_N.cumsum(0) - lengths_N
        pooled_ND = F.embedding_bag(self.inverse_L, rows_UD, offsets_N, mode="sum")
        if self.mean:  # as FBGEMM's kernels round
            pooled_ND *= lengths_N.clamp(min=1).float().reciprocal().unsqueeze(1)
        return pooled_ND if self.size is None else pooled_ND.unflatten(0, (-1, self.size)).transpose(0, 1)

    def add_gradients(self, grad: Tensor, sums_UD: Tensor) -> None:
        grad_ND = grad if self.size is None else grad.transpose(0, 1).flatten(0, 1)
        lengths_N = self.lengths_N.long()
        if self.mean:
            grad_ND = grad_ND / lengths_N.clamp(min=1).unsqueeze(1)
        grad_LD = grad_ND.repeat_interleave(lengths_N, dim=0, output_size=len(self.inverse_L))
        add_by_row(sums_UD, self.inverse_L, grad_LD)


@dataclass(frozen=True, slots=True)
class _SingleIds(FeatureBags):
    """Bags of one id at most.

    Attributes:
        inverse_L: for each id, which distinct row it is; in order of example.
        exists: which bags have an id: (B,), or (B, S) for a sequence with positions.
        ends: the ids before the first piece of the bags, and up to the end of each.
    """

    feature: str
    inverse_L: Tensor
    exists: Tensor
    ends: list[int]

    def pooled(self, rows_UD: Tensor) -> Tensor:
        rows = rows_UD.new_empty(*self.exists.shape, rows_UD.shape[1])
        flat_ND = rows.view(-1, rows_UD.shape[1])
        for bags, exists_N, inverse_L in self._pieces():
            places_N = torch.full_like(exists_N, len(rows_UD) - 1, dtype=inverse_L.dtype)
            places_N[exists_N] = inverse_L
            torch.index_select(rows_UD, 0, places_N, out=flat_ND[bags])
        return rows

    def add_gradients(self, grad: Tensor, sums_UD: Tensor) -> None:
        grad_ND = grad.reshape(-1, grad.shape[-1])
        for bags, exists_N, inverse_L in self._pieces():
            add_by_row(sums_UD, inverse_L, grad_ND[bags][exists_N])

    def _pieces(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Yields some of the bags, which of them have an id, and their ids."""
        exists_N = self.exists.view(-1)
        for number, (first, last) in enumerate(pairwise(self.ends)):
            bags = slice(number * _PIECE, (number + 1) * _PIECE)
            yield bags, exists_N[bags], self.inverse_L[first:last]


def _single_ids(feature: str, inverse_L: Tensor, lengths_N: Tensor, positions: int | None) -> _SingleIds:
    """Returns the bags of a feature; those of a sequence with positions, S of them, come in order of position."""
    exists, inverse_L = lengths_N.bool(), inverse_L.int()
    if positions is not None:
        number_N = torch.zeros_like(lengths_N)
        number_N[exists] = torch.arange(len(inverse_L), dtype=number_N.dtype, device=number_N.device)
        exists = exists.view(positions, -1).T.contiguous()
        inverse_L = inverse_L[number_N.view(positions, -1).T[exists]]
    counts = [each.count_nonzero() for each in exists.view(-1).split(_PIECE)]
    ends = torch.stack([torch.zeros_like(counts[0]), *counts]).cumsum(0).tolist() if counts else [0]
    return _SingleIds(feature, inverse_L, exists, ends)

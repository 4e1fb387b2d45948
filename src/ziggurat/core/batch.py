"""One batch of encoded examples: frozen, and validated once, when it is made.

Shape legend: B rows, F dense features, T labels (tasks).

A worked example, two rows, ``pooled = (user, tags)`` and ``sequences = (history,)``::

    row 0: user 7, tags {3, 1}, history [4, 4, 9]
    row 1: user 2, tags {},     history [5]

    bags      = KJT(keys=[user, tags],  values=[7, 2 | 3, 1],   lengths=[1, 1 | 2, 0])
    sequences = KJT(keys=[history],     values=[4, 4, 9, 5],    lengths=[3, 1])

Values are feature-major: all rows of the first key, then all rows of the second.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor

from ziggurat.core.schema import Schema


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch, as the loader hands it to all code after it.

    Attributes:
        dense_BF: numeric features in the order of ``schema.dense``, float32; (B, 0) if there are none.
        bags: ids of pooled features, int64, with the keys ``schema.pooled``; None if there are none.
        sequences: ids of sequences, int64, with the keys ``schema.sequences``; None if there are none.
        labels_BT: labels in the order of ``schema.labels``, float32; (B, 0) for unlabelled rows.
        weights_B: weights of the examples, float32; None means all ones.
        groups_B: keys for GAUC, int64, or None.
        largest: number of rows of the largest batch of any rank in the same step; None means this batch's.
        counts_BT: weights of each label by itself, float32, which multiply those of the examples; None means all ones.
    """

    dense_BF: Tensor
    bags: KeyedJaggedTensor | None
    sequences: KeyedJaggedTensor | None
    labels_BT: Tensor
    weights_B: Tensor | None = None
    groups_B: Tensor | None = None
    largest: int | None = None
    counts_BT: Tensor | None = None

    @property
    def size(self) -> int:
        """Number of rows B."""
        return self.dense_BF.shape[0]

    @property
    def row_weights(self) -> Tensor | None:
        """Weights of the rows, 0 for those that no label counts; None means all ones."""
        if self.counts_BT is None:
            return self.weights_B
        counted_B = (self.counts_BT > 0).any(1).to(self.counts_BT.dtype)
        return counted_B if self.weights_B is None else counted_B * self.weights_B

    def to(self, device: torch.device) -> Batch:
        """Returns the batch on ``device``: itself if it is there already."""
        if self.dense_BF.device == device:
            return self

        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device, non_blocking=True)

        def move_jagged(jagged: KeyedJaggedTensor | None) -> KeyedJaggedTensor | None:
            return None if jagged is None else jagged.to(device, non_blocking=True)

        return Batch(
            dense_BF=self.dense_BF.to(device, non_blocking=True),
            bags=move_jagged(self.bags),
            sequences=move_jagged(self.sequences),
            labels_BT=self.labels_BT.to(device, non_blocking=True),
            weights_B=move(self.weights_B),
            groups_B=move(self.groups_B),
            largest=self.largest,
            counts_BT=move(self.counts_BT),
        )

    def take(self, kept_B: Tensor) -> Batch:
        """Returns the rows under a mask; ``largest`` stays, as the most that any rank has."""
        if bool(kept_B.all()):
            return self

        def rows(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[kept_B]

        return Batch(
            dense_BF=self.dense_BF[kept_B],
            bags=_taken(self.bags, kept_B),
            sequences=_taken(self.sequences, kept_B),
            labels_BT=self.labels_BT[kept_B],
            weights_B=rows(self.weights_B),
            groups_B=rows(self.groups_B),
            largest=self.largest or self.size,
            counts_BT=rows(self.counts_BT),
        )

    def validate(self, schema: Schema) -> Batch:
        """Checks shapes and keys against ``schema`` and returns the batch. A mismatch is a bug, not a user's error."""
        rows = self.size
        assert self.dense_BF.shape == (rows, len(schema.dense)), (self.dense_BF.shape, schema.dense)
        assert self.labels_BT.shape in {(rows, len(schema.labels)), (rows, 0)}, self.labels_BT.shape
        for jagged, keys in ((self.bags, schema.pooled), (self.sequences, schema.sequences)):
            assert (jagged is None) == (not keys), keys
            assert jagged is None or (tuple(jagged.keys()) == keys and jagged.stride() == rows), keys
        assert self.weights_B is None or self.weights_B.shape == (rows,)
        assert self.groups_B is None or self.groups_B.shape == (rows,)
        assert self.counts_BT is None or self.counts_BT.shape == (rows, len(schema.labels))
        return self


def _taken(jagged: KeyedJaggedTensor | None, kept_B: Tensor) -> KeyedJaggedTensor | None:
    """Returns the rows of all keys under a mask."""
    if jagged is None:
        return None
    keys, lengths = jagged.keys(), jagged.lengths()
    kept_KB = kept_B.repeat(len(keys))
    values = jagged.values()[torch.repeat_interleave(kept_KB, lengths)]
    return KeyedJaggedTensor(keys=keys, values=values, lengths=lengths[kept_KB], stride=int(kept_B.sum()))

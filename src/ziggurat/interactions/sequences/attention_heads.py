"""Multi-head attention between its input and output projections, shared by all attention blocks.

Shape legend: B rows, F items that attend to each other (fields, or positions), H heads, E dims of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ziggurat.interactions.sequences.sequence_encoder import masked_softmax


def attend(projected_BFN: Tensor, heads: int, scale: float, mask_BF: Tensor | None = None) -> Tensor:
    """Returns softmax(Q Kᵀ · scale) V for each head, the heads concatenated: (B, F, H·E).

    Args:
        projected_BFN: queries, keys and values, concatenated, N = 3·H·E.
        heads: H.
        scale: factor of the scores.
        mask_BF: True for items that may be attended to; default: all.
    """
    query_BHFE, key_BHFE, value_BHFE = projected_BFN.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    scores_BHFF = query_BHFE @ key_BHFE.transpose(2, 3) * scale
    if mask_BF is None:
        shares_BHFF = torch.softmax(scores_BHFF, dim=3)
    else:
        shares_BHFF = masked_softmax(scores_BHFF, mask_BF[:, None, None, :])
    return (shares_BHFF @ value_BHFE).transpose(1, 2).flatten(2)

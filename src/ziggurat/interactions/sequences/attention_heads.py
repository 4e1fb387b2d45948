"""What every attention of this house does between its projections: scores, shares, mixture, head by head.

Shape legend: B rows, F places that attend to each other (fields, or positions), H heads, E dims of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ziggurat.interactions.sequences.sequence_encoder import masked_softmax


def attend(projected_BFN: Tensor, heads: int, scale: float, mask_BF: Tensor | None = None) -> Tensor:
    """(B, F, H·E): softmax(Q Kᵀ · scale) V for each head, the heads side by side.

    Args:
        projected_BFN: queries, keys and values side by side, N = 3·H·E.
        heads: H.
        scale: of the scores.
        mask_BF: places that may be attended to; default: all.
    """
    query_BHFE, key_BHFE, value_BHFE = projected_BFN.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    scores_BHFF = query_BHFE @ key_BHFE.transpose(2, 3) * scale
    if mask_BF is None:
        shares_BHFF = torch.softmax(scores_BHFF, dim=3)
    else:
        shares_BHFF = masked_softmax(scores_BHFF, mask_BF[:, None, None, :])
    return (shares_BHFF @ value_BHFE).transpose(1, 2).flatten(2)

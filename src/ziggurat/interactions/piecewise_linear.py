"""Embeds dense features separately, each along a curve: a vector that is linear within each of K intervals.

Shape legend: B rows, F dense features, K intervals, D embedding dim.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ziggurat.interactions.block import Block


class PiecewiseLinearEmbedding(Block):
    """dense_BF in [0, 1] → (B, F, D): e_f = b_f + Σ_k clamp(K·x_f − k, 0, 1) · w_fk.

    The intervals are equally wide. Of a feature that was mapped to its rank among the training values (the step
    ``quantile``) each holds as many training values. Initial weights are normal with a standard deviation of 0.01, like
    the rows of the embedding tables.

    Source: Gorishniy et al., "On Embeddings for Numerical Features in Tabular Deep Learning", arXiv 2203.05556, eq. 1
    (piecewise linear encoding, quantiles for bins) with a linear layer after it. Theirs puts a ReLU after that.

    Args:
        dense: F, at least 1.
        bins: K, at least 1.
        dim: D.
    """

    def __init__(self, dense: int, bins: int, dim: int) -> None:
        super().__init__()
        assert min(dense, bins) >= 1, (dense, bins)
        self.out_features = dense
        self.weights_FKD = nn.Parameter(torch.empty(dense, bins, dim))
        self.bias_FD = nn.Parameter(torch.zeros(dense, dim))
        self.starts_K: Tensor
        self.register_buffer("starts_K", torch.arange(bins, dtype=torch.float32), persistent=False)
        nn.init.normal_(self.weights_FKD, std=0.01)

    def forward(self, dense_BF: Tensor) -> Tensor:
        bins = self.weights_FKD.shape[1]
        filled_BFK = (dense_BF.unsqueeze(-1) * bins - self.starts_K).clamp(0.0, 1.0)
        products_FBD = torch.bmm(filled_BFK.transpose(0, 1), self.weights_FKD)
        return products_FBD.transpose(0, 1) + self.bias_FD

    def matmul_flops(self) -> int:
        return 2 * self.weights_FKD.numel()

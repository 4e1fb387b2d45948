"""The deep clustering network: an autoencoder of the descriptors, and a soft assignment of its codes to centres.

Source: Xie et al. 2016, "Unsupervised deep embedding for clustering analysis" (assignment, target and KL), with the
sizes of our specification of ClusterP3S (arXiv 2302.14329). It is small, and computes in double precision.

Shapes: D columns, K descriptors, C clusters, L = 16 the width of a code.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.cluster import KMeans
from torch import Tensor, nn

from ziggurat.search.pipelines.table import Floats

_HIDDEN, CODE = 64, 16


class ClusteringNetwork(nn.Module):
    """Descriptors -> codes -> soft assignments.

    Args:
        descriptors: K, the number of descriptors.
        clusters: C.
        seed: seeds the weights.
    """

    def __init__(self, descriptors: int, clusters: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = nn.Sequential(nn.Linear(descriptors, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, CODE))
            self.decoder = nn.Sequential(nn.Linear(CODE, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, descriptors))
            self.centres_CL = nn.Parameter(torch.randn(clusters, CODE))
        self.double()

    def forward(self, x_DK: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the assignments q_DC and the reconstruction (D, K)."""
        z_DL: Tensor = self.encoder(x_DK)
        return soft_assignment(z_DL, self.centres_CL), self.decoder(z_DL)

    def pretrain(self, x_DK: Tensor, *, steps: int, seed: int, learning_rate: float = 1e-3) -> list[float]:
        """Trains the autoencoder alone, then sets the centres to those of k-means; returns the losses."""
        optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], learning_rate)
        losses: list[float] = []
        for _ in range(steps):
            optimizer.zero_grad()
            loss = reconstruction_loss(self.decoder(self.encoder(x_DK)), x_DK)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            self.centres_CL.copy_(torch.from_numpy(centres_of(self.codes(x_DK), len(self.centres_CL), seed)))
        return losses

    @torch.no_grad()
    def codes(self, x_DK: Tensor) -> Floats:
        """Returns (D, L)."""
        return self.encoder(x_DK).numpy()


def soft_assignment(z_DL: Tensor, centres_CL: Tensor) -> Tensor:
    """Returns q_DC: q_ij is proportional to (1 + ‖z_i - μ_j‖²)⁻¹, Student's t of one degree of freedom."""
    distance_DC = (z_DL[:, None, :] - centres_CL[None, :, :]).square().sum(dim=2)
    nearness_DC = 1.0 / (1.0 + distance_DC)
    return nearness_DC / nearness_DC.sum(dim=1, keepdim=True)


def target_assignment(q_DC: Tensor) -> Tensor:
    """Returns p_DC, a constant: p_ij is proportional to q_ij² / Σ_i q_ij."""
    with torch.no_grad():
        sharp_DC = q_DC.square() / q_DC.sum(dim=0, keepdim=True)
        return sharp_DC / sharp_DC.sum(dim=1, keepdim=True)


def kl_loss(p_DC: Tensor, q_DC: Tensor) -> Tensor:
    """Returns Σ_ij p_ij log(p_ij / q_ij), the mean over the columns."""
    return (p_DC * (p_DC.clamp_min(1e-300).log() - q_DC.log())).sum(dim=1).mean()


def reconstruction_loss(made_DK: Tensor, x_DK: Tensor) -> Tensor:
    """Returns the mean squared error."""
    return F.mse_loss(made_DK, x_DK)


def policy_loss(q_DC: Tensor, assignment_D: Tensor, advantage: float) -> Tensor:
    """Returns -(r - b) Σ_i log q_{i, a_i}, REINFORCE's loss of one drawn assignment."""
    return -advantage * q_DC.gather(1, assignment_D[:, None]).log().sum()


def entropy(q_DC: Tensor) -> Tensor:
    """Returns the mean over the columns of -Σ_j q_ij log q_ij, in nats."""
    return -(q_DC * q_DC.log()).sum(dim=1).mean()


def clustering(clusters: int, seed: int) -> KMeans:
    """Returns k-means that is not fitted, the best of ten starts."""
    starts: Any = 10
    return KMeans(clusters, n_init=starts, random_state=seed)


def centres_of(points: Floats, clusters: int, seed: int) -> Floats:
    """Returns (C, L) centres of k-means; where there are fewer distinct points, the rest lie beside them."""
    distinct = np.unique(points, axis=0)
    found = min(clusters, len(distinct))
    centres = clustering(found, seed).fit(points).cluster_centers_
    missing = clusters - found
    if missing:
        noise = np.random.default_rng(seed).normal(scale=0.1, size=(missing, points.shape[1]))
        centres = np.concatenate([centres, centres[:1] + noise])
    return centres


def plane(points: Floats) -> Floats:
    """Returns (D, 2): the two directions in which points vary most, with signs that do not depend on the machine."""
    centred = points - points.mean(axis=0)
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    two = np.zeros((2, points.shape[1]))
    two[: min(2, len(directions))] = directions[:2]
    signs = np.sign(two[np.arange(2), np.abs(two).argmax(axis=1)])
    return centred @ (two * np.where(signs == 0, 1.0, signs)[:, None]).T

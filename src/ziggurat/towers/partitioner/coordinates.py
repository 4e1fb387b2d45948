"""Lays features out in the plane so that their distances there are close to given ones.

Shape legend: S starts, F features.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

Floats = npt.NDArray[np.float64]

STEPS, LEARNING_RATE = 600, 0.05


def coordinates(distances_FF: Floats, starts: int, seed: int) -> tuple[Floats, Floats]:
    """Returns maps of the features, each from a random start of its own, and how far each is from the distances.

    Adam minimises Σ_{i>j} (‖X_i − X_j‖ − D_ij)² over the coordinates X. The sum has local minima, hence several starts.

    Source: Luo et al., "Disaggregated Multi-Tower", arXiv 2403.00877, section 3.3.

    Args:
        distances_FF: the distances D, symmetric.
        starts: S.
        seed: decides the random starts; equal seeds give equal maps.

    Returns:
        The coordinates (S, F, 2), and the square root of the mean squared difference of distances, (S,).
    """
    features = len(distances_FF)
    if features < 2:
        return np.zeros((starts, features, 2)), np.zeros(starts)
    random = np.random.default_rng(seed)
    wanted_P = torch.from_numpy(distances_FF[np.triu_indices(features, 1)])
    first_P, second_P = (torch.from_numpy(each) for each in np.triu_indices(features, 1))
    spread = float(distances_FF.max()) or 1.0
    place_SF2 = torch.from_numpy(random.normal(scale=spread / 2, size=(starts, features, 2))).requires_grad_()
    optimizer = torch.optim.Adam([place_SF2], lr=LEARNING_RATE * spread)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        ((_distances(place_SF2, first_P, second_P) - wanted_P) ** 2).sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        error_S = ((_distances(place_SF2, first_P, second_P) - wanted_P) ** 2).mean(1).sqrt()
    return place_SF2.detach().numpy(), error_S.numpy()


def _distances(place_SF2: torch.Tensor, first_P: torch.Tensor, second_P: torch.Tensor) -> torch.Tensor:
    squares_SP = ((place_SF2[:, first_P] - place_SF2[:, second_P]) ** 2).sum(2)
    return (squares_SP + 1e-18).sqrt()  # the root has no gradient at 0

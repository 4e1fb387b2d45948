"""How much features interact, read off the vectors that a trained flat model makes of them.

Shape legend: B rows, F features, K fields, D embedding width.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

Floats = npt.NDArray[np.float64]


class FieldMeans:
    """The mean vector of each field over the rows in which it is not zero, as that of an empty bag is.

    Args:
        fields: K.
        dim: D.
    """

    def __init__(self, fields: int, dim: int) -> None:
        self._sums_KD = torch.zeros(fields, dim, dtype=torch.float64)
        self._rows_K = torch.zeros(fields, dtype=torch.float64)

    def update(self, emb_BKD: Tensor) -> None:
        """Adds the rows of a batch."""
        self._sums_KD += emb_BKD.detach().sum(0, dtype=torch.float64).cpu()
        self._rows_K += (emb_BKD != 0).any(2).sum(0).cpu()

    def compute(self) -> Tensor:
        """Returns the means, (K, D)."""
        return (self._sums_KD / self._rows_K.clamp(min=1)[:, None]).float()


class Affinity:
    """The mean over rows of |cos| between the vectors of any two features, without what all features share.

    A model that multiplies vectors lets two features interact through their dot product. The gradient of one vector is
    then a sum of those of its partners, so training draws the vectors of features whose product tells something into
    the same directions, and leaves the others in directions of their own. The sign says nothing: a product of -1 is as
    much of an interaction as one of 1, and over many rows signs cancel.

    A model without weights for single features, such as DLRM, expresses what an id tells alone by its product with the
    means of other features. So all features have a mean vector, and vary along a direction that their means share,
    whether they interact or not. Both are taken out: each vector is less its feature's mean, and less its part along
    the direction of which the means have most, the first right singular vector of ``means_KD``. The paper takes out
    neither; docs/towers_partitioner.md says what that changes.

    A row in which one of two vectors is zero, as that of an empty bag, does not count for that pair.

    Source: Luo et al., "Disaggregated Multi-Tower", arXiv 2403.00877, section 3.3.

    Args:
        feature_of: for each field, the number of the feature that it is made of. A feature of several fields has the
            mean over them.
        means_KD: the mean vector of each field.
    """

    def __init__(self, feature_of: Sequence[int], means_KD: Tensor) -> None:
        fields = len(feature_of)
        self._feature_of = np.asarray(feature_of)
        self._means_KD = means_KD
        self._shared_D = torch.linalg.svd(means_KD, full_matrices=False)[2][0]
        self._sums_KK = torch.zeros(fields, fields, dtype=torch.float64)
        self._rows_KK = torch.zeros(fields, fields, dtype=torch.float64)
        self.rows = 0

    def update(self, emb_BKD: Tensor) -> None:
        """Adds the rows of a batch."""
        there_BK = (emb_BKD != 0).any(2)
        shared_D = self._shared_D.to(emb_BKD.device)
        centred_BKD = (emb_BKD.detach().float() - self._means_KD.to(emb_BKD.device)) * there_BK[:, :, None]
        own_BKD = centred_BKD - (centred_BKD @ shared_D)[:, :, None] * shared_D
        unit_BKD = functional.normalize(own_BKD, dim=2)
        cos_BKK = unit_BKD @ unit_BKD.transpose(1, 2)
        self._sums_KK += cos_BKK.abs_().sum(0).double().cpu()
        counted_BK = there_BK.double()
        self._rows_KK += (counted_BK.T @ counted_BK).cpu()
        self.rows += len(emb_BKD)

    def compute(self, features: int) -> Floats:
        """Returns the affinity of features, (F, F): symmetric, 1 on the diagonal, else between 0 and 1.

        Args:
            features: F; a feature that no field is made of has affinity 0 to all others.
        """
        mean_KK = (self._sums_KK / self._rows_KK.clamp(min=1)).numpy()
        member_FK = (self._feature_of[None, :] == np.arange(features)[:, None]).astype(np.float64)
        member_FK /= np.maximum(member_FK.sum(1, keepdims=True), 1)
        affinity_FF = np.clip(member_FK @ mean_KK @ member_FK.T, 0.0, 1.0)
        np.fill_diagonal(affinity_FF, 1.0)
        return (affinity_FF + affinity_FF.T) / 2

"""An export in the place of the recommender that it was made of, to evaluate both in one way."""

from __future__ import annotations

import numpy as np
from torch import Tensor, from_numpy

from ziggurat.core.batch import Batch
from ziggurat.objectives.outputs import Outputs
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.tables.inputs import Ids, Inputs
from ziggurat.training.ensemble.combined import CombinedRecommender
from ziggurat.training.evaluate import StandIn
from ziggurat.training.recommender import Recommender


class ExportedModel(StandIn):
    """Computes columns of a batch with an export.

    Args:
        scorer: the export.
        original: the recommender that it was made of.
    """

    def __init__(self, scorer: Scorer, original: Recommender | CombinedRecommender) -> None:
        super().__init__()
        self._scorer, self._original = scorer, [original]

    @property
    def outputs(self) -> Outputs:
        return self._original[0].outputs

    def forward(self, batch: Batch) -> tuple[Tensor, None]:
        """Returns columns_BC (float32), and None."""
        return from_numpy(self._scorer.columns(as_inputs(self._scorer, batch))), None


def as_inputs(scorer: Scorer, batch: Batch) -> Inputs:
    """Returns a batch as inputs of an export."""
    ids: dict[str, Ids] = {}
    for part in (batch.bags, batch.sequences):
        if part is None:
            continue
        for name, jagged in part.to_dict().items():
            lengths = jagged.lengths().numpy()
            values = jagged.values().numpy().astype("int64")
            single = bool((lengths == 1).all())
            ids[name] = Ids(values, None if single else np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    return Inputs(batch.size, batch.dense_BF.numpy(), {name: ids[name] for name in scorer.manifest.features})

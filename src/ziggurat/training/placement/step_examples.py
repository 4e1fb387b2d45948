"""Which share of a training batch is looked up, and which was read: planner and watch price distinct rows by it.

With ``training.negative_rate``, negatives are dropped after a batch was read. With in-batch negatives, most rows of a
batch repeat the ids of those that were read: look-ups are more, distinct rows are not.
"""

from __future__ import annotations

from dataclasses import dataclass

from ziggurat.core.statistics import DatasetStatistics
from ziggurat.features.negatives_config import InBatchNegatives
from ziggurat.training.experiment import Experiment


@dataclass(frozen=True, slots=True)
class StepExamples:
    """The examples of a rank's training batches.

    Attributes:
        batch: the examples of a batch, per rank.
        kept_share: the share of them that is left where negatives are dropped.
        read_share: the share of those that was read.
    """

    batch: int
    kept_share: float
    read_share: float

    @property
    def read(self) -> float:
        """The examples of a batch that were read and kept, per rank."""
        return self.batch * self.kept_share * self.read_share

    @classmethod
    def of(cls, experiment: Experiment, statistics: DatasetStatistics, world_size: int) -> StepExamples:
        """Returns the examples of an experiment's batches.

        Args:
            experiment: its ``training`` and ``data.negatives`` count.
            statistics: those of the dataset, with the share of positives.
            world_size: the number of ranks.
        """
        batch = -(-experiment.training.batch_size // world_size)
        negatives, rate = experiment.data.negatives, experiment.training.negative_rate
        read = 1 / (1 + negatives.per_positive) if isinstance(negatives, InBatchNegatives) else 1.0
        kept = 1.0
        if rate is not None:
            positives = next(iter(statistics.label_rates.values()))["train"]  # there is a single label
            kept = positives + (1 - positives) * rate
        return cls(batch, kept, read)

"""The figures of the validation split while training goes on, and the one of them that training watches."""

from __future__ import annotations

import contextlib

import torch

from ziggurat.data.encoded.dataset import Dataset
from ziggurat.training.averaged import AveragedWeights
from ziggurat.training.evaluate import evaluate_split
from ziggurat.training.experiment import Experiment
from ziggurat.training.recommender import Recommender
from ziggurat.training.train_state import monitored


class Validation:
    """Evaluates the recommender on the validation split, with averaged weights where there are any.

    Args:
        experiment: whose ``evaluation`` and ``training.monitor`` count.
        dataset: the prepared dataset.
        recommender: on ``device``.
        device: this rank's.
        average: the moving average of the weights, if there is one.
    """

    def __init__(
        self,
        experiment: Experiment,
        dataset: Dataset,
        recommender: Recommender,
        device: torch.device,
        average: AveragedWeights | None,
    ) -> None:
        self._blocks, self._schema = dataset.split("validation"), dataset.schema
        self._recommender, self._device, self._average = recommender, device, average
        self._batch_size, self._monitor = experiment.evaluation.batch_size, experiment.training.monitor
        self._tasks = tuple(label.name for label in experiment.data.labels)

    @property
    def rows(self) -> int:
        """Rows of the split; without any there is nothing to evaluate."""
        return self._blocks.rows

    def run(self) -> tuple[dict[str, float], float]:
        """Returns every figure by name, and the value of the one that ``training.monitor`` names."""
        with self._average.in_use() if self._average is not None else contextlib.nullcontext():
            metrics = evaluate_split(self._recommender, self._blocks, self._schema, self._device, self._batch_size)
        figures = metrics.compute()
        return figures, monitored(figures, self._monitor, self._tasks)

    def shown(self, figures: dict[str, float]) -> dict[str, float]:
        """Returns the figures for the progress display: NE, AUC, and the monitored one if it says something else."""
        names = ("ne", "auc") if self._monitor == "log_loss" else ("ne", "auc", self._monitor)  # NE is log-loss, scaled
        return {f"val_{name}": monitored(figures, name, self._tasks) for name in dict.fromkeys(names)}

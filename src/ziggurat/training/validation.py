"""Evaluates the validation split during training."""

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
    """Evaluates the recommender on the validation split, with averaged weights if there are any.

    Args:
        experiment: the config; its ``evaluation`` section and ``training.monitor`` count.
        dataset: the prepared dataset.
        recommender: the recommender, on ``device``.
        device: this rank's device.
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
        self._tasks = recommender.outputs.tasks

    @property
    def rows(self) -> int:
        """The number of rows of the split; 0 means that there is nothing to evaluate."""
        return self._blocks.rows

    def run(self) -> tuple[dict[str, float], float]:
        """Returns all metrics by name, and the value of the metric that ``training.monitor`` names."""
        with self._average.in_use() if self._average is not None else contextlib.nullcontext():
            metrics = evaluate_split(self._recommender, self._blocks, self._schema, self._device, self._batch_size)
        figures = metrics.compute()
        return figures, monitored(figures, self._monitor, self._tasks)

    def shown(self, figures: dict[str, float]) -> dict[str, float]:
        """Returns the metrics for the progress display: NE, AUC, and the monitored metric if it is another."""
        rates = all(task.is_probability for task in self._tasks)
        names = ("ne", "auc") if rates else ()
        if self._monitor != "log_loss" or not rates:  # NE is log-loss, scaled
            names = (*names, self._monitor)
        return {f"val_{name}": monitored(figures, name, self._tasks) for name in dict.fromkeys(names)}

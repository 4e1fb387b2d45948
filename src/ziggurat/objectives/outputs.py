"""The last step of a recommender: what a model returns becomes logits and predictions in the labels' units.

A model's outputs are small numbers around 0 at first. Where a label's are not, the step shifts and scales them by
figures of the training rows: a regression label begins at its mean, a rate at its base rate, so that no epoch is lost
on the first thing that any model must learn. Shifts and scales are buffers, and checkpoints hold them.

What it returns of a row (its *columns*), by the label's kind, with x the model's output:

    binary, soft      the logit x + shift
    squared, huber    the prediction mean + std · x
    log1p             log(1 + prediction) = mean + std · x, both of log(1 + label)
    poisson, tweedie  the log of the prediction, log(mean) + x
    quantile          a prediction for each level, quantile + std · x
    ordinal           for each level but the last, the logit of exceeding it, x − threshold; the thresholds are learnt

Where negatives were dropped before training at a rate r, a model learns p' with odds of 1/r times those of p. Outside
training log(r) is added to the logit, which is p' / (p' + (1 − p') / r) in probabilities (He et al. 2014, "Practical
lessons from predicting clicks on ads at Facebook", section 6.3).

Shape legend: B rows, K outputs of a model, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.objectives.label_figures import LabelFigures
from ziggurat.objectives.losses import Huber, Log1p, Poisson, Quantile, Tweedie
from ziggurat.objectives.task import Task, column_slices

LEAST_GAP = 1e-4
"""The least distance of two thresholds at the start."""


class Outputs(nn.Module):
    """Turns the outputs of a model (B, K) into the columns of its tasks (B, C), and columns and labels into losses.

    For binary labels that begin at 1/2 it changes nothing.

    Args:
        tasks: the tasks, in the order of the labels.
        at_base_rate: whether binary labels begin at their base rate; soft labels always do.
    """

    def __init__(self, tasks: Sequence[Task], at_base_rate: bool = False) -> None:
        super().__init__()
        self.tasks = tuple(tasks)
        self.outputs = sum(task.outputs for task in tasks)
        self._columns = column_slices(tasks)
        self.parts = nn.ModuleList(_part(task, at_base_rate) for task in tasks)
        ends = [sum(task.outputs for task in tasks[: number + 1]) for number in range(len(tasks))]
        self._outputs = [slice(end - task.outputs, end) for task, end in zip(tasks, ends, strict=True)]

    @property
    def _parts(self) -> list[_Part]:
        return [part for part in self.parts if isinstance(part, _Part)]

    @torch.no_grad()
    def start(self, figures: Mapping[str, LabelFigures]) -> list[str]:
        """Sets shifts, scales and thresholds from figures of the training rows; returns the labels that lack them."""
        missing: list[str] = []
        for task, part in zip(self.tasks, self._parts, strict=True):
            if task.name in figures:
                part.start(figures[task.name])
            elif part.needs_figures:
                missing.append(task.name)
        return missing

    def forward(self, outputs_BK: Tensor) -> Tensor:
        """Returns the columns (B, C); outside training, logits are corrected by the rate of negatives."""
        if all(part.is_identity for part in self._parts):
            return outputs_BK
        parts = [part(outputs_BK[:, at]) for part, at in zip(self._parts, self._outputs, strict=True)]
        return torch.cat(parts, dim=1)

    def losses(self, columns_BC: Tensor, labels_BT: Tensor) -> Tensor:
        """Returns the loss of each row and task (B, T), in units in which an untrained prediction costs about 1."""
        if all(task.kind == "binary" for task in self.tasks):
            return F.binary_cross_entropy_with_logits(columns_BC, labels_BT, reduction="none")
        losses = [
            part.loss(columns_BC[:, at], label_B)
            for part, at, label_B in zip(self._parts, self._columns, labels_BT.unbind(1), strict=True)
        ]
        return torch.stack(losses, dim=1)

    def losses_of(self, number: int, columns_BC: Tensor, label_B: Tensor) -> Tensor:
        """Returns the loss of each row (B,) for the task of this number, of that task's columns alone."""
        return self._parts[number].loss(columns_BC, label_B)

    def row_losses(self, columns_BC: Tensor, labels_BT: Tensor, counts_BT: Tensor | None = None) -> Tensor:
        """Returns the loss of each row (B,): the mean over its tasks, by their weights and those of the row.

        Args:
            columns_BC: what :meth:`forward` returned in training.
            labels_BT: the labels.
            counts_BT: weights of each label by itself, which count in units of their mean in training.
        """
        losses_BT = self.losses(columns_BC, labels_BT)
        if counts_BT is not None:
            one = counts_BT.new_ones(())
            units_T = torch.stack([one if part.unit is None else part.unit for part in self._parts])
            losses_BT = losses_BT * (counts_BT / units_T)
        weights = [task.weight for task in self.tasks]
        if len(set(weights)) == 1:
            return losses_BT.mean(dim=1)
        return losses_BT @ losses_BT.new_tensor(weights) / sum(weights)

    def predictions(self, columns_BC: Tensor) -> Tensor:
        """Returns the predictions (B, T) in the labels' units, by the formulas of :meth:`Task.predictions`."""
        parts = [part.prediction(columns_BC[:, at]) for part, at in zip(self._parts, self._columns, strict=True)]
        return torch.stack(parts, dim=1)


class _Part(nn.Module):
    """The step of one task.

    Attributes:
        needs_figures: whether training cannot begin well without figures of the label.
    """

    needs_figures = True

    @property
    def unit(self) -> Tensor | None:
        """The mean number of trials that a label's events are out of; None for labels that count rows."""
        return None

    @property
    def is_identity(self) -> bool:
        return False

    def start(self, figures: LabelFigures) -> None:
        raise NotImplementedError

    def loss(self, columns_BC: Tensor, label_B: Tensor) -> Tensor:
        raise NotImplementedError

    def prediction(self, columns_BC: Tensor) -> Tensor:
        raise NotImplementedError


class _Probability(_Part):
    """A logit, with a shift if it begins at the base rate, and corrected by the rate of negatives."""

    def __init__(self, task: Task, shifted: bool) -> None:
        super().__init__()
        self.needs_figures = shifted
        self.shift: Tensor | None
        self.register_buffer("shift", torch.zeros(()) if shifted else None)
        self.trials: Tensor | None
        self.register_buffer("trials", torch.ones(()) if task.kind == "soft" else None)
        self._correction = math.log(task.negative_rate)
        self._dropped = math.log(task.negative_rate / task.known_rate)

    @property
    def unit(self) -> Tensor | None:
        return self.trials

    @property
    def is_identity(self) -> bool:
        return self.shift is None and (self.training or not self._correction)

    def start(self, figures: LabelFigures) -> None:
        if self.trials is not None:
            self.trials.fill_(figures.trials)
        if self.shift is not None and 0 < figures.mean < 1:
            # The figures count all negatives of the log, of which training sees a share.
            self.shift.fill_(math.log(figures.mean) - math.log1p(-figures.mean) - self._dropped)

    def forward(self, outputs_BK: Tensor) -> Tensor:
        logits_B1 = outputs_BK if self.shift is None else outputs_BK + self.shift
        return logits_B1 if self.training or not self._correction else logits_B1 + self._correction

    def loss(self, columns_BC: Tensor, label_B: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(columns_BC[:, 0], label_B, reduction="none")

    def prediction(self, columns_BC: Tensor) -> Tensor:
        return torch.sigmoid(columns_BC[:, 0])


class _Scaled(_Part):
    """Shifted and scaled outputs, which are predictions or their logs."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self._task = task
        self.shift: Tensor
        self.scale: Tensor
        self.register_buffer("shift", torch.zeros(task.outputs))
        self.register_buffer("scale", torch.ones(()))

    def start(self, figures: LabelFigures) -> None:
        match self._task.loss:
            case Log1p():
                shift, scale = [figures.log_mean], figures.log_std
            case Quantile(levels=levels):
                shift, scale = [figures.quantile(level) for level in levels], figures.std
            case _:
                shift, scale = [figures.mean], figures.std
        self.shift.copy_(torch.tensor(shift))
        self.scale.fill_(scale if scale > 0 else 1.0)

    def forward(self, outputs_BK: Tensor) -> Tensor:
        return outputs_BK * self.scale + self.shift

    def loss(self, columns_BC: Tensor, label_B: Tensor) -> Tensor:
        match self._task.loss:
            case Huber(delta=delta):
                loss_B = F.huber_loss(columns_BC[:, 0], label_B, reduction="none", delta=delta)
                return loss_B / (self.scale * self.scale.clamp(max=delta))
            case Quantile(levels=levels):
                levels_C = columns_BC.new_tensor(levels)
                missed_BC = (label_B.unsqueeze(1) - columns_BC) / self.scale
                return torch.maximum(levels_C * missed_BC, (levels_C - 1) * missed_BC).mean(1)
            case Log1p():
                return ((columns_BC[:, 0] - torch.log1p(label_B)) / self.scale).square() / 2
            case _:
                return ((columns_BC[:, 0] - label_B) / self.scale).square() / 2

    def prediction(self, columns_BC: Tensor) -> Tensor:
        match self._task.loss:
            case Quantile():
                return columns_BC.sort(dim=1).values[:, self._task.middle]
            case Log1p():
                return torch.expm1(columns_BC[:, 0]).clamp(min=0)
            case _:
                return columns_BC[:, 0]


class _Logarithmic(_Part):
    """The log of a mean that is above 0. Losses are in units of the training mean, in which they scale with labels."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        assert isinstance(task.loss, Poisson | Tweedie)
        self._power = task.loss.power if isinstance(task.loss, Tweedie) else 1.0
        self.shift: Tensor
        self.register_buffer("shift", torch.zeros(()))

    def start(self, figures: LabelFigures) -> None:
        if figures.mean > 0:
            self.shift.fill_(math.log(figures.mean))

    def forward(self, outputs_BK: Tensor) -> Tensor:
        return outputs_BK + self.shift

    def loss(self, columns_BC: Tensor, label_B: Tensor) -> Tensor:
        log_B = columns_BC[:, 0] - self.shift
        label_B = label_B * torch.exp(-self.shift)
        if self._power == 1.0:
            return torch.exp(log_B) - label_B * log_B
        one, two = 1 - self._power, 2 - self._power
        return torch.exp(two * log_B) / two - label_B * torch.exp(one * log_B) / one

    def prediction(self, columns_BC: Tensor) -> Tensor:
        return torch.exp(columns_BC[:, 0])


class _Ordered(_Part):
    """Cumulative logits of ordered levels: P(label > level k) = σ(x − θ_k), with ascending thresholds θ.

    Source: McCullagh, "Regression models for ordinal data", Journal of the Royal Statistical Society B 42, 1980.
    θ_k = θ_1 + Σ softplus(gap), so that thresholds keep their order whatever the optimizer does.
    """

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(1))
        self.gaps = nn.Parameter(torch.zeros(task.columns - 1)) if task.columns > 1 else None
        self.levels: Tensor
        self.register_buffer("levels", torch.tensor(task.levels))

    def start(self, figures: LabelFigures) -> None:
        shares = torch.tensor(figures.shares, dtype=torch.float64)
        shares = (shares + 1e-6) / (shares + 1e-6).sum()
        above = 1 - shares.cumsum(0)[:-1]
        thresholds = torch.log1p(-above) - torch.log(above)
        self.first.copy_(thresholds[:1])
        if self.gaps is not None:
            self.gaps.copy_(torch.log(torch.expm1(thresholds.diff().clamp(min=LEAST_GAP))))

    def forward(self, outputs_BK: Tensor) -> Tensor:
        thresholds = self.first
        if self.gaps is not None:
            thresholds = torch.cat([thresholds, thresholds + F.softplus(self.gaps).cumsum(0)])
        return outputs_BK - thresholds

    def loss(self, columns_BC: Tensor, label_B: Tensor) -> Tensor:
        level_B = torch.searchsorted(self.levels, label_B.contiguous()).clamp(max=len(self.levels) - 1)
        infinite_B1 = columns_BC.new_full((len(columns_BC), 1), torch.inf)
        edges = torch.cat([infinite_B1, columns_BC, -infinite_B1], dim=1)
        upper_B = edges.gather(1, level_B.unsqueeze(1)).squeeze(1)  # the logit of reaching the level
        lower_B = edges.gather(1, level_B.unsqueeze(1) + 1).squeeze(1)  # the logit of exceeding it
        # σ(a) − σ(b) = σ(a)·σ(−b)·(1 − e^(b − a)), which does not cancel where both are near 0 or 1.
        return -F.logsigmoid(upper_B) - F.logsigmoid(-lower_B) - _log1mexp(upper_B - lower_B)

    def prediction(self, columns_BC: Tensor) -> Tensor:
        steps = self.levels.diff()
        return self.levels[0] + (torch.sigmoid(columns_BC) * steps).sum(1)


def _log1mexp(gap_B: Tensor) -> Tensor:
    """Returns log(1 − e^(−gap)) for gaps above 0, which may be infinite."""
    return torch.log(-torch.expm1(-gap_B))


def _part(task: Task, at_base_rate: bool) -> _Part:
    if task.is_probability:
        return _Probability(task, at_base_rate or task.kind == "soft")
    if task.kind == "ordinal":
        return _Ordered(task)
    return _Logarithmic(task) if isinstance(task.loss, Poisson | Tweedie) else _Scaled(task)

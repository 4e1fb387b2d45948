"""A step of the architecture: the gradient of a held-out batch's loss and of the expected cost, in θ alone.

Shape legend: B rows, C columns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor

from ziggurat.core.batch import Batch
from ziggurat.optim.torch_optimizers import Adam
from ziggurat.search.architecture.config import SuperNetConfig
from ziggurat.search.architecture.space.whole_space import CostName, WholeSpace
from ziggurat.search.architecture.supernet.projection import Projection
from ziggurat.search.architecture.supernet.relaxation import ARCHITECTURE, Logits
from ziggurat.search.architecture.supernet.super_net import SuperRecommender
from ziggurat.training.loss import weighted_loss

_BETAS = (0.5, 0.99)


class ArchitectureStepper:
    """Performs steps of the architecture.

    Loss: the mean loss of the batch under masks of Gumbel-softmax (of ``masks: hard`` rounded, with the gradient of the
    unrounded ones), plus, for each limit, w · log(E[cost] / limit), with E over architectures that are drawn with the
    probabilities softmax(θ). After each step θ is moved until all expected costs are within their limits. Weights,
    tables and their optimizers do not change.

    Args:
        recommender: the super-net, in training mode.
        logits: θ.
        space: the space, for its costs.
        limits: the limits.
        config: the weight of the costs, and the learning rate.

    Attributes:
        optimizer: the optimizer of θ, and of nothing else.
        project: moves θ until the expected costs are within the limits.
    """

    def __init__(
        self,
        recommender: SuperRecommender,
        logits: Logits,
        space: WholeSpace,
        limits: Mapping[CostName, float],
        config: SuperNetConfig,
    ) -> None:
        self._recommender, self._logits, self._space = recommender, logits, space
        self._limits, self._config = dict(limits), config
        names = dict(logits.parameters)
        self.optimizer = Adam(lr=config.lr, betas=_BETAS).build(names) if names else None
        self.project = Projection(logits, space, limits)

    def __call__(self, batch: Batch, temperature: float, step: int) -> float:
        """Performs a step with this rank's rows; all ranks call it. Returns the mean loss of the batch of all ranks."""
        loss, gradients = self.gradients(batch, temperature, step)
        if self.optimizer is not None:
            for name, parameter in self._logits.parameters.items():
                parameter.grad = gradients[name]
            self.optimizer.step()
            self.project()
            self.optimizer.zero_grad(set_to_none=True)
        return loss

    def gradients(self, batch: Batch, temperature: float, step: int) -> tuple[float, dict[str, Tensor]]:
        """Returns the mean loss of the batch of all ranks, and name -> gradient of the whole objective."""
        parameters = list(self._logits.parameters.values())
        loss, weight = self._loss(batch, temperature, step)
        found: list[Tensor | None] = [None] * len(parameters)
        if parameters:
            found = list(torch.autograd.grad(loss, parameters, allow_unused=True))
        self._recommender.lookup.release()
        flat = [
            torch.zeros_like(parameter) if each is None else each
            for parameter, each in zip(parameters, found, strict=True)
        ]
        sums = torch.cat([each.double().flatten() for each in (*flat, loss.detach().cpu(), weight.cpu())])
        if dist.get_world_size() > 1:
            dist.all_reduce(sums)
        total = float(sums[-1])
        mean = sums[:-1] / total if total else torch.zeros_like(sums[:-1])
        gradients = self._cost_gradients(parameters)
        for own, part in zip(gradients, mean[:-1].split([len(each) for each in parameters]), strict=True):
            own += part.to(own.dtype)
        return float(mean[-1]), dict(zip(self._logits.parameters, gradients, strict=True))

    def _loss(self, batch: Batch, temperature: float, step: int) -> tuple[Tensor, Tensor]:
        """Returns the sum of the loss over this rank's rows, differentiable in θ, and the sum of their weights."""
        recommender = self._recommender
        extended = recommender.hashed(batch)
        rows = recommender.lookup.finish(recommender.lookup.start(extended))
        by_feature = {name: each.detach() for name, each in rows.by_feature.items()}
        recommender.net.masks = self._logits.masks(
            temperature, ARCHITECTURE, step, straight=self._config.masks == "hard"
        )
        # The part itself, not the module that averages gradients of weights over ranks: only θ gets a gradient here.
        columns_BC, _ = recommender.part(extended.dense_BF, by_feature, rows.masks)
        return weighted_loss(recommender.outputs, columns_BC, batch)

    def _cost_gradients(self, parameters: list[torch.nn.Parameter]) -> list[Tensor]:
        penalty = self.penalty()
        if not penalty.requires_grad:
            return [torch.zeros_like(each) for each in parameters]
        found = list[Tensor | None](torch.autograd.grad(penalty, parameters, allow_unused=True))
        return [
            torch.zeros_like(parameter) if each is None else each.clone()
            for parameter, each in zip(parameters, found, strict=True)
        ]

    def penalty(self) -> Tensor:
        """Returns the part of the objective that the expected costs make, differentiable in θ; a constant 0 if they
        have no weight."""
        total = torch.zeros((), dtype=torch.float64)
        if not self._config.cost_weight:
            return total
        costs = self._space.expected_costs(self._logits.probabilities())
        for name, limit in self._limits.items():
            total = total + self._config.cost_weight * (torch.log(costs[name].clamp_min(1e-9)) - math.log(limit))
        return total

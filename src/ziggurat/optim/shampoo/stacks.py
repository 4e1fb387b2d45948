"""All blocks of a rank in one group of parameters: what is done number by number is one call for all of them.

Blocks of one shape are a :class:`~ziggurat.optim.shampoo.stack.Stack`, whose matrices are its own. Gradients, means,
the graft's second moments and momentum of all stacks lie in one flat tensor each; a stack has views of its part.

Shape legend: F numbers of all blocks with their padding; N blocks of a stack, D1 … Dk their dimensions, P the last one
padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from ziggurat.optim.shampoo import grafts
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.optim.shampoo.stack import Stack, padded_shape

_LEAST_NORM = 1e-16
"""Added to norms that are divided by."""


class Stacks:
    """Stacks of one group, of one type and on one device.

    Args:
        kinds: of each stack: names of the blocks, for messages, their shape, and whether there is more to their steps
            than the graft's.
        config: what shapes the state: graft, form, exponents, whether there are means and momentum.
        like: a tensor of the type and on the device that states and updates have.
        worker: takes roots that may be late.

    Attributes:
        stacks: of the kinds.
        gradients: (F,), to be filled before each step.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[Sequence[str], tuple[int, ...], bool]],
        config: ShampooConfig,
        like: Tensor,
        worker: ThreadPoolExecutor | None = None,
    ) -> None:
        self._shapes = [padded_shape(len(names), shape) for names, shape, _ in kinds]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self.gradients = like.new_zeros(sum(self._sizes))
        plain = {
            "mean": config.betas[0] > 0 or config.beta3 is not None,
            "graft": grafts.has_moment(config.graft),
            "momentum": config.momentum > 0,
        }
        self._held = {name: torch.zeros_like(self.gradients) for name, there in plain.items() if there}
        parts = {name: self._split(flat) for name, flat in self._held.items()}
        self.stacks = [
            Stack(names, shape, turned, config, like, {name: views[number] for name, views in parts.items()}, worker)
            for number, (names, shape, turned) in enumerate(kinds)
        ]

    def blocks(self, flat_F: Tensor) -> list[list[Tensor]]:
        """Of each stack its blocks, views of ``flat_F`` in the blocks' own shape."""
        return [
            [stack.block(part, number) for number in range(len(part))]
            for stack, part in zip(self.stacks, self._split(flat_F), strict=True)
        ]

    def advance(
        self,
        chosen: Sequence[Sequence[int]],
        step: int,
        config: ShampooConfig,
        weights_F: Tensor | None = None,
        decay: float = 0.0,
    ) -> Tensor:
        """One step of blocks whose gradients are in :attr:`gradients`.

        Args:
            chosen: which of each stack; the others stay as they are.
            step: theirs, from 1.
            config: as it is now.
            weights_F: of all blocks; None where they do not decay.
            decay: of the weights, what is added to the gradient (``coupled``) or to the update.

        Returns:
            (F,): what is to be subtracted from the chosen blocks' weights, but for the learning rate.

        Raises:
            DivergedError: a gradient or a second moment is not finite, or a root fails for the fourth time running.
        """
        if all(len(numbers) == len(stack) for numbers, stack in zip(chosen, self.stacks, strict=True)):
            self._check(self.gradients, chosen)
            return self._advance(self._held, self.gradients, chosen, step, config, weights_F, decay)
        is_chosen = torch.zeros_like(self.gradients, dtype=torch.bool)
        for numbers, part in zip(chosen, self._split(is_chosen), strict=True):
            part[list(numbers)] = True
        gradients = torch.where(is_chosen, self.gradients, 0)
        self._check(gradients, chosen)
        held = {name: flat.clone() for name, flat in self._held.items()}
        update = self._advance(held, gradients, chosen, step, config, weights_F, decay)
        for name, flat in self._held.items():
            flat.copy_(torch.where(is_chosen, held[name], flat))
        return update

    def _advance(
        self,
        held: Mapping[str, Tensor],
        gradients: Tensor,
        chosen: Sequence[Sequence[int]],
        step: int,
        config: ShampooConfig,
        weights: Tensor | None,
        decay: float,
    ) -> Tensor:
        if weights is not None and config.decay == "coupled":
            gradients = gradients.add(weights, alpha=decay)
        if "graft" in held:
            kept, taken = grafts.weights(config.graft)
            held["graft"].mul_(kept).addcmul_(gradients, gradients, value=taken)
        parts = self._split(gradients)
        for stack, numbers, part in zip(self.stacks, chosen, parts, strict=True):
            stack.gather(numbers, part, config)
            stack.turn(numbers, step, config)
        mean = _mean(held, gradients, step, config)
        update = _grafted(held, mean, step, config)
        if step >= config.begins:
            update = self._directed(update, mean, parts, chosen, step, config)
        if weights is not None and config.decay != "coupled":
            update = update.add(weights, alpha=decay)
        if config.momentum:
            momentum = held["momentum"].mul_(config.momentum).add_(update)
            update = update.add(momentum, alpha=config.momentum) if config.nesterov else momentum
        return update

    def _directed(
        self,
        grafted: Tensor,
        mean: Tensor,
        gradients: Sequence[Tensor],
        chosen: Sequence[Sequence[int]],
        step: int,
        config: ShampooConfig,
    ) -> Tensor:
        """The graft's step in Shampoo's direction, of blocks that have one."""
        means = self._split(mean)
        found = {
            number: stack.direction(chosen[number], means[number], gradients[number], step, config)
            for number, stack in enumerate(self.stacks)
            if stack.is_turned and chosen[number]
        }
        if not found:
            return grafted
        if config.graft.name != "none":
            parts = self._split(grafted)
            wanted = _norms([parts[number][place] for number in found for place in chosen[number]])
            had = _norms([block for direction in found.values() for block in direction.unbind(0)])
            scales = (wanted / (had + _LEAST_NORM)).split([len(each) for each in found.values()])
            for direction, scale in zip(found.values(), scales, strict=True):
                direction.mul_(scale.view(-1, *([1] * (direction.dim() - 1))))
        update = grafted.clone()
        targets = self._split(update)
        for number, direction in found.items():
            if len(direction) == len(targets[number]):
                targets[number].copy_(direction)
            else:
                targets[number][list(chosen[number])] = direction
        return update

    def _split(self, flat_F: Tensor) -> list[Tensor]:
        """Of each stack (N, D1, …, P), views."""
        parts = flat_F.split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _check(self, gradients: Tensor, chosen: Sequence[Sequence[int]]) -> None:
        if not gradients.sum().isfinite():
            for stack, numbers, part in zip(self.stacks, chosen, self._split(gradients), strict=True):
                stack.check(part[list(numbers)], numbers, "gradient")


def _mean(held: Mapping[str, Tensor], gradients: Tensor, step: int, config: ShampooConfig) -> Tensor:
    """The gradient's moving mean, without the zeros it began with."""
    if "mean" not in held:
        return gradients
    beta1, mean = config.betas[0], held["mean"]
    if config.beta3 is None:
        mean.lerp_(gradients, 1 - beta1)
        return mean / (1 - beta1**step)
    found = mean.lerp(gradients, 1 - config.beta3)
    mean.lerp_(gradients, 1 - beta1)
    return found.div_(1 - config.beta3 * beta1 ** (step - 1))


def _grafted(held: Mapping[str, Tensor], mean: Tensor, step: int, config: ShampooConfig) -> Tensor:
    """The other optimizer's step."""
    if "graft" not in held:
        return mean
    root = (held["graft"] / grafts.correction(config.graft, step)).sqrt_()
    return mean / root.add_(grafts.eps(config.graft))


def _norms(blocks: Sequence[Tensor]) -> Tensor:
    """(N,), each by itself, so that none depends on how many there are."""
    return torch.stack(torch._foreach_norm(list(blocks)))  # pyright: ignore[reportPrivateUsage] - no public name

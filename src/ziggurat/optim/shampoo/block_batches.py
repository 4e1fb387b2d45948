"""All blocks of a rank that have the same settings: what is done number by number is one call for all of them.

Blocks of one shape are a :class:`~ziggurat.optim.shampoo.block_batch.BlockBatch`, whose matrices are its own.
Gradients, means, the graft's second moments and momentum of all stacks lie in one flat tensor each; a stack has views
of its part. What a step works out lies in memory that is there from the first one on, as do the views of it: of a small
model's step, making them anew would take longer than working on them.

Shape legend: F numbers of all blocks with their padding; N blocks of a stack, D1 … Dk their dimensions, P the last one
padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

import torch
from torch import Tensor

from ziggurat.optim.shampoo import grafts
from ziggurat.optim.shampoo.arguments import ShampooArguments
from ziggurat.optim.shampoo.block_batch import BlockBatch
from ziggurat.optim.shampoo.products import padded_shape

_LEAST_NORM = 1e-16
"""Added to norms that are divided by."""


class BlockBatches:
    """All block batches of groups that differ in learning rate and weight decay alone, of one type and on one device.

    Args:
        kinds: of each stack: names of the blocks, for messages, their shape, and whether there is more to their steps
            than the graft's.
        config: what shapes the state: graft, form, exponents, whether there are means and momentum.
        like: a tensor of the type and on the device that states and updates have.
        worker: takes roots that may be late.

    Attributes:
        stacks: of the kinds.
        gradients: of each stack its blocks, views to be filled before each step.
    """

    def __init__(
        self,
        kinds: Sequence[tuple[Sequence[str], tuple[int, ...], bool]],
        config: ShampooArguments,
        like: Tensor,
        worker: ThreadPoolExecutor | None = None,
    ) -> None:
        self._shapes = [padded_shape(len(names), shape) for names, shape, _ in kinds]
        self._sizes = [math.prod(shape) for shape in self._shapes]
        self._gradients, self._update = (like.new_zeros(sum(self._sizes)) for _ in range(2))
        plain = {
            "mean": config.has_mean,
            "graft": grafts.has_moment(config.graft),
            "momentum": config.momentum > 0,
        }
        self._held = {name: torch.zeros_like(self._gradients) for name, there in plain.items() if there}
        self._kept = [(flat, self._views(flat)) for flat in (self._gradients, self._update, *self._held.values())]
        held = {name: self._split(flat) for name, flat in self._held.items()}
        self.stacks = [
            BlockBatch(
                names, shape, turned, config, like, {name: views[number] for name, views in held.items()}, worker
            )
            for number, (names, shape, turned) in enumerate(kinds)
        ]  # fmt: skip
        self._mean: Tensor | None = None
        self._updates = self._split(self._update)
        self._unpadded = [part[..., : shape[-1]] for part, (_, shape, _) in zip(self._updates, kinds, strict=True)]
        self._each_update = [part.unbind(0) for part in self._updates]
        self.gradients, self._update_blocks = self.blocks(self._gradients), self.blocks(self._update)

    def zeros(self) -> Tensor:
        """(F,)"""
        return torch.zeros_like(self._gradients)

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
        config: ShampooArguments,
        decay_F: Tensor | None = None,
    ) -> list[list[Tensor]]:
        """One step of blocks whose gradients are in :attr:`gradients`.

        Args:
            chosen: which of each stack; the others stay as they are.
            step: theirs, from 1.
            config: as it is now.
            decay_F: of all blocks, what of the weights is added to the gradient (``coupled``) or to the update; None
                where they do not decay.

        Returns:
            Of each stack its blocks: what is to be subtracted from the chosen ones' weights, but for the learning rate;
            until the next step.

        Raises:
            DivergedError: a second moment is not finite, or a root fails for the fourth time running.
        """
        if all(len(numbers) == len(stack) for numbers, stack in zip(chosen, self.stacks, strict=True)):
            update = self._advance(self._held, self._gradients, chosen, step, config, decay_F)
            return self._update_blocks if update is self._update else self.blocks(update)
        is_chosen = torch.zeros_like(self._gradients, dtype=torch.bool)
        for numbers, part in zip(chosen, self._split(is_chosen), strict=True):
            part[list(numbers)] = True
        gradients = torch.where(is_chosen, self._gradients, 0)
        held = {name: flat.clone() for name, flat in self._held.items()}
        update = self._advance(held, gradients, chosen, step, config, decay_F)
        for name, flat in self._held.items():
            flat.copy_(torch.where(is_chosen, held[name], flat))
        return self.blocks(update.clone())  # others' step may come before it is used

    def _advance(
        self,
        held: Mapping[str, Tensor],
        gradients: Tensor,
        chosen: Sequence[Sequence[int]],
        step: int,
        config: ShampooArguments,
        decay: Tensor | None,
    ) -> Tensor:
        if decay is not None and config.decay == "coupled":
            gradients = gradients.add(decay)
        parts = self._split(gradients)
        for stack, numbers, part in zip(self.stacks, chosen, parts, strict=True):
            if stack.is_turned:
                stack.gather(numbers, part, step, config)
                stack.turn(numbers, step, config)
                stack.observe(numbers, part, step, config)
        if isinstance(config.graft, grafts.AdamGraft) and "mean" in held and config.beta3 is None:
            mean = _put_adam(self._update, held, gradients, step, config)
            share = 1 - config.betas[0] ** step
        else:
            if self._mean is None:
                self._mean = torch.zeros_like(self._gradients)
            mean, share = _put_mean(self._mean, held, gradients, step, config), 1.0
            _put_grafted(self._update, held, gradients, mean, step, config)
        if step >= config.leads:
            self._direct(self._split(mean), share, chosen, step, config)
        update = self._update
        if decay is not None and config.decay != "coupled":
            update.add_(decay)
        if config.momentum:
            momentum = held["momentum"].mul_(config.momentum).add_(update)
            update = update.add_(momentum, alpha=config.momentum) if config.nesterov else momentum
        self._check(update, chosen, "step")
        return update

    def _direct(
        self,
        means: Sequence[Tensor],
        share: float,
        chosen: Sequence[Sequence[int]],
        step: int,
        config: ShampooArguments,
    ) -> None:
        """Give the graft's steps, which the updates are so far, Shampoo's direction, of blocks that have one."""
        found = {
            number: stack.direction(chosen[number], means[number], share, step, config)
            for number, stack in enumerate(self.stacks)
            if stack.is_turned and chosen[number]
        }
        if not found:
            return
        scales: list[Tensor | float] = [1.0] * len(found)
        if config.graft.name != "none":
            blocks = [self._each_update[number][place] for number in found for place in chosen[number]]
            count = len(blocks)
            for direction in found.values():
                blocks += direction.unbind(0)
            norms = _norms(blocks)
            every = norms[:count] / norms[count:].add_(_LEAST_NORM)
            begins = accumulate((len(direction) for direction in found.values()), initial=0)
            scales = [
                every[begin : begin + len(direction)].view(-1, *[1] * (direction.dim() - 1))
                for begin, direction in zip(begins, found.values(), strict=False)
            ]
        for (number, direction), scale in zip(found.items(), scales, strict=True):
            target = self._unpadded[number]
            if len(direction) == len(target):
                torch.mul(direction, scale, out=target)
            else:
                target[list(chosen[number])] = direction * scale

    def _split(self, flat_F: Tensor) -> list[Tensor]:
        """Of each stack (N, D1, …, P), views."""
        for own, views in self._kept:
            if flat_F is own:
                return views
        return self._views(flat_F)

    def _views(self, flat_F: Tensor) -> list[Tensor]:
        """The same, made anew."""
        parts = flat_F.split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def check(self, chosen: Sequence[Sequence[int]]) -> None:
        """Raises a DivergedError that names the first of the chosen blocks whose gradient, or its square, is not
        finite."""
        if not math.isfinite(float(torch.dot(self._gradients, self._gradients))):  # a sum may cancel
            self._check(self._gradients, chosen, "gradient")
            self._check(self._gradients.square(), chosen, "squared gradient")

    def _check(self, flat_F: Tensor, chosen: Sequence[Sequence[int]], what: str) -> None:
        if not math.isfinite(float(flat_F.sum())):
            for stack, numbers, part in zip(self.stacks, chosen, self._split(flat_F), strict=True):
                stack.check(part[list(numbers)], numbers, what)


def _put_adam(
    into: Tensor, held: Mapping[str, Tensor], gradients: Tensor, step: int, config: ShampooArguments
) -> Tensor:
    """Adam's step, by torch's kernel, which reads all there is once.

    Returns:
        The gradient's moving mean with the zeros it began with: steps that are as long as Adam's are none the shorter.
    """
    before = torch.full((), step, dtype=torch.float32, device=into.device)
    torch._fused_adam_(  # pyright: ignore[reportPrivateUsage] - torch.optim's own, without an optimizer around it
        [into.zero_()], [gradients], [held["mean"]], [held["graft"]], [], [before], lr=-1.0, beta1=config.betas[0],
        beta2=grafts.weights(config.graft)[0], weight_decay=0.0, eps=grafts.eps(config.graft), amsgrad=False,
        maximize=False,
    )  # fmt: skip
    return held["mean"]


def _put_mean(
    into: Tensor, held: Mapping[str, Tensor], gradients: Tensor, step: int, config: ShampooArguments
) -> Tensor:
    """The gradient's moving mean, without the zeros it began with."""
    if "mean" not in held:
        return into.copy_(gradients)
    beta1, mean = config.betas[0], held["mean"]
    if config.beta3 is None:
        mean.lerp_(gradients, 1 - beta1)
        return torch.div(mean, 1 - beta1**step, out=into)
    torch.lerp(mean, gradients, 1 - config.beta3, out=into)
    mean.lerp_(gradients, 1 - beta1)
    return into.div_(1 - config.beta3 * beta1 ** (step - 1))


def _put_grafted(
    into: Tensor, held: Mapping[str, Tensor], gradients: Tensor, mean: Tensor, step: int, config: ShampooArguments
) -> None:
    """The other optimizer's step."""
    if "graft" not in held:
        into.copy_(mean)
        return
    kept, taken = grafts.weights(config.graft)
    held["graft"].mul_(kept).addcmul_(gradients, gradients, value=taken)
    torch.div(held["graft"], grafts.correction(config.graft, step), out=into)
    into.sqrt_().add_(grafts.eps(config.graft))
    torch.div(mean, into, out=into)


def _norms(blocks: Sequence[Tensor]) -> Tensor:
    """(N,), each by itself, so that none depends on how many there are."""
    return torch.stack(torch._foreach_norm(list(blocks)))  # pyright: ignore[reportPrivateUsage] - no public name

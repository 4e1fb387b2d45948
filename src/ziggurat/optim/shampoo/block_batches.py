"""All blocks of a rank with the same settings; elementwise operations are one call for all of them.

Blocks of one shape form a :class:`~ziggurat.optim.shampoo.block_batch.BlockBatch`, which holds their matrices. The
gradients, means, second moments of the graft and momentum of all batches are one flat tensor each; a batch has views of
its part. The buffers of a step and their views are allocated once and reused: for a small model, allocating them would
take longer than the computation.

Shape legend: F numbers of all blocks with their padding; N blocks of a batch, D1 … Dk their dimensions, P the last one
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
        kinds: for each batch, the names of its blocks (for messages), their shape, and whether they are preconditioned.
        config: settings that shape the state: graft, form, exponents, whether there are means and momentum.
        like: a tensor with the dtype and device of states and updates.
        worker: thread that computes roots that may be late.

    Attributes:
        batches: the batch of each of the kinds.
        gradients: for each batch the gradients of its blocks, views to be filled before each step.
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
        present = {
            "mean": config.has_mean,
            "graft": grafts.has_moment(config.graft),
            "momentum": config.momentum > 0,
        }
        self._flat_states = {name: torch.zeros_like(self._gradients) for name, there in present.items() if there}
        self._kept = [
            (flat, self._views(flat)) for flat in (self._gradients, self._update, *self._flat_states.values())
        ]
        states = {name: self._split(flat) for name, flat in self._flat_states.items()}
        self.batches = [
            BlockBatch(
                names,
                shape,
                is_preconditioned,
                config,
                like,
                {name: views[number] for name, views in states.items()},
                worker,
            )
            for number, (names, shape, is_preconditioned) in enumerate(kinds)
        ]
        self._mean: Tensor | None = None
        self._updates = self._split(self._update)
        self._unpadded = [part[..., : shape[-1]] for part, (_, shape, _) in zip(self._updates, kinds, strict=True)]
        self._each_update = [part.unbind(0) for part in self._updates]
        self.gradients, self._update_blocks = self.blocks(self._gradients), self.blocks(self._update)

    def zeros(self) -> Tensor:
        """Returns zeros, (F,)."""
        return torch.zeros_like(self._gradients)

    def blocks(self, flat_F: Tensor) -> list[list[Tensor]]:
        """Returns for each batch its blocks, as views of ``flat_F`` in the blocks' own shape."""
        return [
            [batch.block(part, number) for number in range(len(part))]
            for batch, part in zip(self.batches, self._split(flat_F), strict=True)
        ]

    def advance(
        self,
        chosen: Sequence[Sequence[int]],
        step: int,
        config: ShampooArguments,
        decay_F: Tensor | None = None,
    ) -> list[list[Tensor]]:
        """Takes a step of the chosen blocks with the gradients in :attr:`gradients`.

        Args:
            chosen: for each batch the numbers of the blocks that take a step; the others do not change.
            step: the step of the chosen blocks, counted from 1.
            config: the current settings.
            decay_F: for all blocks, the weight decay term added to the gradient (``coupled``) or to the update; None
                without weight decay.

        Returns:
            For each batch its blocks' updates, which are subtracted from the weights after multiplication by the
            learning rate. Only those of the chosen blocks are meaningful. They are valid until the next step.

        Raises:
            DivergedError: a second moment is not finite, or a root fails for the fourth time in a row.
        """
        if all(len(numbers) == len(batch) for numbers, batch in zip(chosen, self.batches, strict=True)):
            update = self._advance(self._flat_states, self._gradients, chosen, step, config, decay_F)
            return self._update_blocks if update is self._update else self.blocks(update)
        is_chosen = torch.zeros_like(self._gradients, dtype=torch.bool)
        for numbers, part in zip(chosen, self._split(is_chosen), strict=True):
            part[list(numbers)] = True
        gradients = torch.where(is_chosen, self._gradients, 0)
        states = {name: flat.clone() for name, flat in self._flat_states.items()}
        update = self._advance(states, gradients, chosen, step, config, decay_F)
        for name, flat in self._flat_states.items():
            flat.copy_(torch.where(is_chosen, states[name], flat))
        return self.blocks(update.clone())  # a step of other blocks may overwrite the buffer before it is used

    def _advance(
        self,
        states: Mapping[str, Tensor],
        gradients: Tensor,
        chosen: Sequence[Sequence[int]],
        step: int,
        config: ShampooArguments,
        decay: Tensor | None,
    ) -> Tensor:
        if decay is not None and config.decay == "coupled":
            gradients = gradients.add(decay)
        parts = self._split(gradients)
        for batch, numbers, part in zip(self.batches, chosen, parts, strict=True):
            if batch.is_preconditioned:
                batch.update_factors(numbers, part, step, config)
                batch.update_roots(numbers, step, config)
                batch.update_moments(numbers, part, step, config)
        if isinstance(config.graft, grafts.AdamGraft) and "mean" in states and config.beta3 is None:
            mean = _adam_step(self._update, states, gradients, step, config)
            share = 1 - config.betas[0] ** step
        else:
            if self._mean is None:
                self._mean = torch.zeros_like(self._gradients)
            mean, share = _mean_into(self._mean, states, gradients, step, config), 1.0
            _graft_step_into(self._update, states, gradients, mean, step, config)
        if step >= config.first_direction_step:
            self._set_directions(self._split(mean), share, chosen, step, config)
        update = self._update
        if decay is not None and config.decay != "coupled":
            update.add_(decay)
        if config.momentum:
            momentum = states["momentum"].mul_(config.momentum).add_(update)
            update = update.add_(momentum, alpha=config.momentum) if config.nesterov else momentum
        self._check(update, chosen, "step")
        return update

    def _set_directions(
        self,
        means: Sequence[Tensor],
        share: float,
        chosen: Sequence[Sequence[int]],
        step: int,
        config: ShampooArguments,
    ) -> None:
        """Replaces the updates, which are the graft's steps so far, by Shampoo's directions scaled to their norms.

        Blocks that are not preconditioned keep the graft's step.
        """
        found = {
            number: batch.direction(chosen[number], means[number], share, step, config)
            for number, batch in enumerate(self.batches)
            if batch.is_preconditioned and chosen[number]
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
        """Returns each batch's part of ``flat_F`` as a view, (N, D1, …, P); cached for the tensors that are kept."""
        for own, views in self._kept:
            if flat_F is own:
                return views
        return self._views(flat_F)

    def _views(self, flat_F: Tensor) -> list[Tensor]:
        """Returns the same as :meth:`_split`, without the cache."""
        parts = flat_F.split(self._sizes)
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def check(self, chosen: Sequence[Sequence[int]]) -> None:
        """Validates that the gradients of the chosen blocks, and their squares, are finite.

        Raises:
            DivergedError: naming the first block for which they are not.
        """
        if not math.isfinite(
            float(torch.dot(self._gradients, self._gradients))
        ):  # squares, since a plain sum may cancel
            self._check(self._gradients, chosen, "gradient")
            self._check(self._gradients.square(), chosen, "squared gradient")

    def _check(self, flat_F: Tensor, chosen: Sequence[Sequence[int]], what: str) -> None:
        if not math.isfinite(float(flat_F.sum())):
            for batch, numbers, part in zip(self.batches, chosen, self._split(flat_F), strict=True):
                batch.check(part[list(numbers)], numbers, what)


def _adam_step(
    into: Tensor, states: Mapping[str, Tensor], gradients: Tensor, step: int, config: ShampooArguments
) -> Tensor:
    """Computes Adam's step by torch's fused kernel, which reads every tensor only once.

    Returns:
        The gradient's moving mean, without bias correction: it only gives the direction, the norm is Adam's step's.
    """
    before = torch.full((), step, dtype=torch.float32, device=into.device)
    torch._fused_adam_(  # pyright: ignore[reportPrivateUsage] - torch.optim's own, without an optimizer around it
        [into.zero_()], [gradients], [states["mean"]], [states["graft"]], [], [before], lr=-1.0, beta1=config.betas[0],
        beta2=grafts.weights(config.graft)[0], weight_decay=0.0, eps=grafts.eps(config.graft), amsgrad=False,
        maximize=False,
    )  # fmt: skip
    return states["mean"]


def _mean_into(
    into: Tensor, states: Mapping[str, Tensor], gradients: Tensor, step: int, config: ShampooArguments
) -> Tensor:
    """Updates the gradient's moving mean and returns it, bias-corrected, in ``into``."""
    if "mean" not in states:
        return into.copy_(gradients)
    beta1, mean = config.betas[0], states["mean"]
    if config.beta3 is None:
        mean.lerp_(gradients, 1 - beta1)
        return torch.div(mean, 1 - beta1**step, out=into)
    torch.lerp(mean, gradients, 1 - config.beta3, out=into)
    mean.lerp_(gradients, 1 - beta1)
    return into.div_(1 - config.beta3 * beta1 ** (step - 1))


def _graft_step_into(
    into: Tensor, states: Mapping[str, Tensor], gradients: Tensor, mean: Tensor, step: int, config: ShampooArguments
) -> None:
    """Computes the step of the graft, the other optimizer, into ``into``."""
    if "graft" not in states:
        into.copy_(mean)
        return
    kept, taken = grafts.weights(config.graft)
    states["graft"].mul_(kept).addcmul_(gradients, gradients, value=taken)
    torch.div(states["graft"], grafts.correction(config.graft, step), out=into)
    into.sqrt_().add_(grafts.eps(config.graft))
    torch.div(mean, into, out=into)


def _norms(blocks: Sequence[Tensor]) -> Tensor:
    """Returns the norm of each block, (N,); computed separately, so that none depends on the number of blocks."""
    return torch.stack(torch._foreach_norm(list(blocks)))  # pyright: ignore[reportPrivateUsage] - no public name

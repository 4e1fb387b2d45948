"""Equal blocks, worked on together: second moments, roots, and the update.

Blocks of one shape lie in one tensor, and each operation is one call for all of them. Rows are padded by 1 to 16 zeros,
so that every block begins where memory is aligned and none fills its place: MKL's products of matrices that begin
elsewhere, or that are alone and contiguous, differ in the last bits from the same ones in a stack, and a block is to
come to the same numbers whoever owns it, beside whatever others.

Shape legend: N blocks, D1 … Dk their dimensions, P the last one padded; a block of one dimension has a first one of 1.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ziggurat.core.errors import DivergedError
from ziggurat.optim.shampoo import grafts, roots
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.optim.shampoo.roots import RootError

ALIGNED = 16
"""Numbers to which rows are padded; 64 bytes in fp32."""
MOST_FAILURES = 3
"""Roots of one factor that may fail one after the other; the last good one is used meanwhile."""
_LEAST_NORM = 1e-16
"""Added to norms that are divided by."""

Found = dict[str, Tensor | RootError]
"""Name of a state -> what it becomes, or why it does not."""

_log = logging.getLogger(__name__)


class Stack:
    """Equal blocks of one group of parameters.

    Args:
        names: of the blocks, for messages.
        shape: of each.
        config: what shapes the state: graft, form, exponents, whether there are means and momentum.
        like: a tensor of the type and on the device that states and updates have.
        worker: takes roots that may be late.
    """

    def __init__(
        self,
        names: Sequence[str],
        shape: tuple[int, ...],
        config: ShampooConfig,
        like: Tensor,
        worker: ThreadPoolExecutor | None = None,
    ) -> None:
        self._names, self._shape, self._worker = names, shape, worker
        self._inner = shape if len(shape) > 1 else (1, *shape)
        self._like = like
        first = len(self._inner) - len(shape)
        self._exponents = {
            first + number: config.exponent(len(shape), number)
            for number, size in enumerate(shape)
            if size > 1 and config.exponent(len(shape), number)
        }
        self._turns = [
            f"{kind}_{dimension}"
            for dimension in self._exponents
            for kind, there in (
                ("root", config.form == "roots"),
                ("basis", config.form == "eigenbasis" or config.root == "qr"),
            )
            if there
        ]
        self._held = self._begun(config)
        self._failures: dict[tuple[int, str], int] = {}
        self._coming: dict[int, tuple[int, Future[Found] | None]] = {}
        self.gradients = self._zeros()
        """(N, D1, …, P): to be filled before each step."""

    def _begun(self, config: ShampooConfig) -> dict[str, Tensor]:
        """Name of a state -> of all blocks, as before the first step."""
        plain = {
            "mean": config.betas[0] > 0 or config.beta3 is not None,
            "graft": grafts.has_moment(config.graft),
            "momentum": config.momentum > 0,
            "moment": config.form == "eigenbasis" and bool(self._exponents),
        }
        held = {name: self._zeros() for name, there in plain.items() if there}
        for dimension in self._exponents:
            size = self._inner[dimension]
            held[f"factor_{dimension}"] = _padded(len(self._names), (size, size), self._like)
        for name in self._turns:
            size = self._inner[_dimension(name)]
            held[name] = _padded(len(self._names), (size, size), self._like)
            held[name][..., :size] = torch.eye(size, dtype=self._like.dtype, device=self._like.device)
            if config.late:
                held[f"next_{name}"] = held[name].clone()
        return held

    def _zeros(self) -> Tensor:
        return _padded(len(self._names), self._inner, self._like)

    def block(self, stack: Tensor, number: int) -> Tensor:
        """One block of a stack of them, a view in the block's own shape."""
        found = stack[number, ..., : self._inner[-1]]
        return found if len(self._shape) > 1 else found[0]

    def state(self, number: int) -> dict[str, Tensor]:
        """Name -> state of a block, live."""
        return {
            name: self._square(name, number) if _is_square(name) else self.block(stack, number)
            for name, stack in self._held.items()
        }

    def settle(self) -> None:
        """Have the state hold roots that are on their way, so that it can be saved."""
        for number, (due, future) in self._coming.items():
            if future is not None:
                self._put(number, future.result(), "next_")
                self._coming[number] = (due, None)

    def resumed(self, number: int, step: int, config: ShampooConfig) -> None:
        """A block's state was replaced by that of step ``step``."""
        self._coming.pop(number, None)
        taken = step - step % config.precondition_frequency
        if config.late and taken > config.begins and step < taken + config.late:
            self._coming[number] = (taken + config.late, None)

    def advance(
        self,
        numbers: Sequence[int],
        step: int,
        config: ShampooConfig,
        weights: Tensor | None = None,
        decay: float = 0.0,
    ) -> Tensor:
        """One step of blocks whose gradients are in :attr:`gradients`.

        Args:
            numbers: which; the others stay as they are.
            step: theirs, from 1.
            config: as it is now.
            weights: (N, D1, …, P) of all blocks; None where they do not decay.
            decay: of the weights, what is added to the gradient (``coupled``) or to the update.

        Returns:
            (len(numbers), D1, …, P): what is to be subtracted from the weights, but for the learning rate.

        Raises:
            DivergedError: a gradient or a second moment is not finite, or a root fails for the fourth time running.
        """
        gradients = self._chosen(self.gradients, numbers)
        self._check(gradients, numbers, "gradient")
        if weights is not None:
            weights = self._chosen(weights, numbers)
            if config.decay == "coupled":
                gradients = gradients.add(weights, alpha=decay)
        with self._those(numbers) as held:
            self._moments(held, gradients, config)
        self._turn(numbers, step, config)
        with self._those(numbers) as held:
            update = self._update(held, gradients, step, config)
            if weights is not None and config.decay != "coupled":
                update = update.add(weights, alpha=decay)
            if config.momentum:
                held["momentum"].mul_(config.momentum).add_(update)
                update = update.add(held["momentum"], alpha=config.momentum) if config.nesterov else held["momentum"]
        return update

    def _chosen(self, stack: Tensor, numbers: Sequence[int]) -> Tensor:
        """Of a stack some blocks: a copy, unless they are all."""
        return stack if len(numbers) == len(self._names) else stack[list(numbers)]

    @contextlib.contextmanager
    def _those(self, numbers: Sequence[int]) -> Generator[dict[str, Tensor]]:
        """The state of some blocks, to be changed in place."""
        held = {name: self._chosen(stack, numbers) for name, stack in self._held.items()}
        yield held
        for name, stack in self._held.items():
            if held[name] is not stack:
                stack[list(numbers)] = held[name]

    def _check(self, stack: Tensor, numbers: Sequence[int], what: str) -> None:
        if stack.sum().isfinite():
            return
        for place, number in enumerate(numbers):
            if not stack[place].isfinite().all():
                raise DivergedError(
                    f"{self._names[number]}: its {what} has numbers that are not finite",
                    "lower the learning rate or clip gradients (training.clip_norm); a checkpoint has the weights "
                    "from before",
                )

    def _moments(self, held: Mapping[str, Tensor], gradients: Tensor, config: ShampooConfig) -> None:
        """Second moments of rows and columns, and of single numbers for the graft."""
        beta2 = config.betas[1]
        for dimension in self._exponents:
            factor, size = held[f"factor_{dimension}"], self._inner[dimension]
            rows = self._unfolded(gradients, dimension)
            kept, taken = beta2, 1 - beta2 if beta2 < 1 else 1.0
            factor[..., :size].baddbmm_(rows, rows.mT, beta=kept, alpha=taken)
        if "graft" in held:
            kept, taken = grafts.weights(config.graft)
            held["graft"].mul_(kept).addcmul_(gradients, gradients, value=taken)

    def _turn(self, numbers: Sequence[int], step: int, config: ShampooConfig) -> None:
        """Take new roots where that is due, and use those that have come."""
        for number in numbers:
            due, future = self._coming.get(number, (0, None))
            if due == step:
                del self._coming[number]
                self._put(number, self._next(number) if future is None else future.result())
        begins = config.begins
        if not self._exponents or step < begins or (step > begins and step % config.precondition_frequency):
            return
        for number in numbers:
            factors = self._factors(number, step, config)
            if self._worker is not None and config.late and step > begins:
                self._coming[number] = (step + config.late, self._worker.submit(self._found, factors, number, config))
            else:
                self._put(number, self._found(factors, number, config))

    def _factors(self, number: int, step: int, config: ShampooConfig) -> dict[int, Tensor]:
        """Dimension -> second moments of a block as they are now, without the zeros they began with."""
        beta2 = config.betas[1]
        correction = 1 - beta2**step if beta2 < 1 else 1.0
        found: dict[int, Tensor] = {}
        for dimension in self._exponents:
            found[dimension] = self._held[f"factor_{dimension}"][number, :, : self._inner[dimension]] / correction
            self._check(found[dimension][None], [number], f"matrix of second moments of dimension {dimension}")
        return found

    def _found(self, factors: Mapping[int, Tensor], number: int, config: ShampooConfig) -> Found:
        """New roots and eigenvectors of a block; in a thread of its own where they may be late."""
        found: Found = {}
        for dimension, factor_DD in factors.items():
            root, basis = f"root_{dimension}", f"basis_{dimension}"
            try:
                if root in self._held and config.root != "qr":
                    found[root] = roots.inverse_root(factor_DD, self._exponents[dimension], config.epsilon, config.root)
                    continue
                values_D, vectors_DD = self._eigen(factor_DD, number, basis, config)
                if root in self._held:
                    found[root] = roots.root_of(values_D, vectors_DD, self._exponents[dimension], config.epsilon)
                found[basis] = vectors_DD
            except RootError as error:
                found[basis if root not in self._held else root] = error
        return found

    def _eigen(self, factor_DD: Tensor, number: int, basis: str, config: ShampooConfig) -> tuple[Tensor, Tensor]:
        before_DD = self._square(basis, number)
        identity_DD = torch.eye(len(before_DD), dtype=before_DD.dtype, device=before_DD.device)
        if config.root == "eigh" or torch.equal(before_DD, identity_DD):  # the first time there is nothing to turn
            return roots.eigenvectors(factor_DD)
        return roots.turned(factor_DD, before_DD)

    def _next(self, number: int) -> Found:
        return {name: self._square(f"next_{name}", number) for name in self._turns}

    def _square(self, name: str, number: int) -> Tensor:
        stack = self._held[name]
        return stack[number, :, : stack.shape[-2]]

    def _put(self, number: int, found: Found, prefix: str = "") -> None:
        """Use what was found; where it failed, what there was before."""
        for name, result in found.items():
            key = (number, name)
            if not isinstance(result, RootError):
                self._failures.pop(key, None)
                self._square(prefix + name, number).copy_(result)
                if f"next_{name}" in self._held:  # so that the state does not depend on when it was last saved
                    self._square(f"next_{name}", number).copy_(result)
                continue
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            what = f"{self._names[number]}, dimension {_dimension(name)}: {result}"
            if failures > MOST_FAILURES:
                raise DivergedError(
                    f"{what}; for the {failures}th time running",
                    "raise epsilon, lower the learning rate, or use root: eigh",
                )
            if prefix:
                self._square(prefix + name, number).copy_(self._square(name, number))
            _log.warning("%s; the last one is kept (%d of %d times)", what, failures, MOST_FAILURES)

    def _update(self, held: Mapping[str, Tensor], gradients: Tensor, step: int, config: ShampooConfig) -> Tensor:
        mean = _mean(held, gradients, step, config)
        grafted = self._grafted(held, mean, step, config)
        if step < config.begins or not self._exponents:
            return grafted
        if config.form == "eigenbasis":
            direction = self._in_basis(held, gradients, mean, step, config)
        else:
            direction = mean
            for dimension in self._exponents:
                direction = self._along(direction, held[f"root_{dimension}"], dimension)
        if config.graft.name == "none":
            return direction
        scale = _norms(grafted) / (_norms(direction) + _LEAST_NORM)
        return direction.mul_(scale.view(-1, *([1] * len(self._inner))))

    def _grafted(self, held: Mapping[str, Tensor], mean: Tensor, step: int, config: ShampooConfig) -> Tensor:
        if "graft" not in held:
            return mean
        root = (held["graft"] / grafts.correction(config.graft, step)).sqrt_()
        return mean / root.add_(grafts.eps(config.graft))

    def _in_basis(
        self, held: Mapping[str, Tensor], gradients: Tensor, mean: Tensor, step: int, config: ShampooConfig
    ) -> Tensor:
        """Adam, in the basis of the eigenvectors (Vyas et al. 2024, algorithm 3)."""
        bases = {dimension: held[f"basis_{dimension}"] for dimension in self._exponents}

        def turned(stack: Tensor, back: bool = False) -> Tensor:
            for dimension, basis in bases.items():
                stack = self._along(stack, basis, dimension, transposed=not back)
            return stack

        beta2, moment = config.betas[1], held["moment"]
        there = turned(gradients)
        moment.mul_(beta2).addcmul_(there, there, value=1 - beta2 if beta2 < 1 else 1.0)
        correction = 1 - beta2 ** (step - config.begins + 1) if beta2 < 1 else 1.0
        return turned(turned(mean).div_((moment / correction).sqrt_().add_(config.epsilon)), back=True)

    def _unfolded(self, stack: Tensor, dimension: int) -> Tensor:
        """(N, D, the others): rows of a dimension."""
        count, last = len(stack), self._inner[-1]
        if dimension == len(self._inner) - 1:
            return stack.view(count, -1, stack.shape[-1])[..., :last].mT
        if len(self._inner) == 2:
            return stack[..., :last]
        rows = stack[..., :last].movedim(dimension + 1, 1).reshape(count, self._inner[dimension], -1)
        found = _padded(count, rows.shape[1:], stack)
        found[..., : rows.shape[-1]] = rows
        return found[..., : rows.shape[-1]]

    def _along(self, stack: Tensor, matrices: Tensor, dimension: int, transposed: bool = False) -> Tensor:
        """Each block with a dimension multiplied from the left by a matrix of its own."""
        count, last, size = len(stack), self._inner[-1], self._inner[dimension]
        matrices = matrices[..., :size]
        left = matrices.mT if transposed else matrices
        found = _padded(count, self._inner, stack)
        rows = self._unfolded(stack, dimension)
        if dimension == len(self._inner) - 1:
            torch.bmm(rows.mT, left.mT, out=found.view(count, -1, found.shape[-1])[..., :last])
        elif len(self._inner) == 2:
            torch.bmm(left, rows, out=found[..., :last])
        else:
            product = _padded(count, (size, rows.shape[-1]), stack)[..., : rows.shape[-1]]
            torch.bmm(left, rows, out=product)
            others = [each for number, each in enumerate(self._inner) if number != dimension]
            found[..., :last] = product.reshape(count, size, *others).movedim(1, dimension + 1)
        return found


def _padded(count: int, shape: Sequence[int], like: Tensor) -> Tensor:
    """Zeros (N, D1, …, P) of the type and on the device of ``like``."""
    *rows, last = shape
    return like.new_zeros((count, *rows, (last // ALIGNED + 1) * ALIGNED))


def _is_square(name: str) -> bool:
    return name.startswith(("factor_", "root_", "basis_", "next_"))


def _dimension(name: str) -> int:
    """Of the state of a factor: ``root_1``."""
    return int(name.rpartition("_")[2])


def _mean(held: Mapping[str, Tensor], gradients: Tensor, step: int, config: ShampooConfig) -> Tensor:
    """The gradient's moving mean, without the zeros it began with; a new tensor."""
    if "mean" not in held:
        return gradients
    beta1, mean = config.betas[0], held["mean"]
    if config.beta3 is None:
        mean.lerp_(gradients, 1 - beta1)
        return mean / (1 - beta1**step)
    found = mean.lerp(gradients, 1 - config.beta3)
    mean.lerp_(gradients, 1 - beta1)
    return found.div_(1 - config.beta3 * beta1 ** (step - 1))


def _norms(stack: Tensor) -> Tensor:
    """(N,) of blocks, each by itself, so that none depends on how many there are."""
    return torch.stack(torch._foreach_norm(list(stack.unbind(0))))  # pyright: ignore[reportPrivateUsage] - no public name

"""A batch of equal blocks that are processed together: their second moments, roots and step directions.

Blocks of one shape are stored in one tensor, a stack, and each operation is one call for all of them.

Shape legend: N blocks, D1 … Dk their dimensions, P the last one padded; a block of one dimension has a first one of 1.
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from ziggurat.core.errors import DivergedError
from ziggurat.optim.shampoo import roots
from ziggurat.optim.shampoo.arguments import MOMENT_WARMUP_STEPS, ShampooArguments
from ziggurat.optim.shampoo.products import Products, at_least_2d, padded, padded_shape
from ziggurat.optim.shampoo.roots import RootError

MOST_FAILURES = 3
"""Consecutive failures allowed for the root of one factor; meanwhile the last good root is used."""

NewRoots = dict[str, Tensor | RootError]
"""Name of a state -> its new value, or the error that prevented it."""

_log = logging.getLogger(__name__)


class BlockBatch:
    """Equal blocks of parameters with the same settings.

    Only if :attr:`is_preconditioned` do they have second moments of rows and columns, roots and directions.

    Args:
        names: name of each block, for messages.
        shape: shape of each block.
        is_preconditioned: whether the blocks are preconditioned, provided that their dimensions have exponents; else
            their steps are the graft's alone.
        config: settings that shape the state: graft, form, exponents, whether there are means and momentum.
        like: a tensor with the dtype and device of states and updates.
        elementwise: name -> elementwise state of all blocks (N, D1, …, P), owned by the caller; :meth:`state` lists
            these too.
        worker: thread that computes roots that may be late.
    """

    def __init__(
        self,
        names: Sequence[str],
        shape: tuple[int, ...],
        is_preconditioned: bool,
        config: ShampooArguments,
        like: Tensor,
        elementwise: Mapping[str, Tensor],
        worker: ThreadPoolExecutor | None = None,
    ) -> None:
        self._names, self._shape, self._elementwise, self._worker = names, shape, elementwise, worker
        self._inner = at_least_2d(shape)
        self._like = like
        first = len(self._inner) - len(shape)
        exponents = {
            first + number: config.exponent(len(shape), number)
            for number, size in enumerate(shape)
            if size > 1 or _single_counts(shape, config)
        }
        self._exponents = {number: each for number, each in exponents.items() if each and is_preconditioned}
        self._root_names = [
            f"{kind}_{dimension}"
            for dimension in self._exponents
            for kind, there in (
                ("root", config.form == "roots"),
                ("basis", config.form == "eigenbasis" or config.root == "qr"),
            )
            if there
        ]
        self._states = self._initial_state(config)
        self._products = Products(len(names), shape, like)
        self._root: tuple[Tensor, tuple[float, ...]] | None = None
        """Root of the second moments in the eigenbasis plus epsilon, and the values that it depends on; kept until the
        second moments change."""
        self._failures: dict[tuple[int, str], int] = {}
        self._pending: dict[int, tuple[int, Future[NewRoots] | None]] = {}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def is_preconditioned(self) -> bool:
        """Whether the blocks are preconditioned; else their steps are the graft's alone."""
        return bool(self._exponents)

    def _initial_state(self, config: ShampooArguments) -> dict[str, Tensor]:
        """Returns name -> state of all blocks, before the first step."""
        states: dict[str, Tensor] = {}
        if config.form == "eigenbasis" and self._exponents:
            states["moment"] = self._like.new_zeros(padded_shape(len(self._names), self._shape))
        for dimension in self._exponents:
            size = self._inner[dimension]
            states[f"factor_{dimension}"] = padded(len(self._names), (size, size), self._like)
        for name in self._root_names:
            size = self._inner[_dimension(name)]
            states[name] = padded(len(self._names), (size, size), self._like)
            states[name][..., :size] = torch.eye(size, dtype=self._like.dtype, device=self._like.device)
            if config.late:
                states[f"next_{name}"] = states[name].clone()
        return states

    def block(self, stack: Tensor, number: int) -> Tensor:
        """Returns one block of a stack, a view in the block's own shape."""
        found = stack[number, ..., : self._inner[-1]]
        return found if len(self._shape) > 1 else found[0]

    def state(self, number: int) -> dict[str, Tensor]:
        """Returns name -> state of a block, as live views."""
        return {
            name: self._square(name, number) if _is_square(name) else self.block(stack, number)
            for name, stack in {**self._elementwise, **self._states}.items()
        }

    def wait_for_roots(self) -> None:
        """Waits for roots that are being computed and stores them in the state, so that it can be saved."""
        for number, (_, future) in self._pending.items():
            if future is not None:
                for name, found in future.result().items():  # failures are handled when the root is due
                    current = self._square(name, number) if isinstance(found, RootError) else found
                    self._square(f"next_{name}", number).copy_(current)

    def resume(self, number: int, step: int, config: ShampooArguments) -> None:
        """Resumes a block whose state has been replaced by the state after step ``step``."""
        self._pending.pop(number, None)
        self._root = None
        taken = step - step % config.precondition_frequency
        if config.late and taken > config.first_root_step and step < taken + config.late:
            self._pending[number] = (taken + config.late, None)

    def _chosen(self, stack: Tensor, numbers: Sequence[int]) -> Tensor:
        """Returns some blocks of a stack: a copy, or the stack itself for all blocks."""
        return stack if len(numbers) == len(self._names) else stack[list(numbers)]

    def _chosen_states(self, numbers: Sequence[int], *kinds: str) -> dict[str, Tensor]:
        """Returns the states of some blocks whose names start with one of ``kinds``: copies.

        For all blocks, returns all states themselves.
        """
        if len(numbers) == len(self._names):
            return self._states
        return {name: self._chosen(stack, numbers) for name, stack in self._states.items() if name.startswith(kinds)}

    @contextlib.contextmanager
    def _edited_states(self, numbers: Sequence[int], kind: str) -> Generator[dict[str, Tensor]]:
        """Yields the states of some blocks whose names start with ``kind``, to be changed in place."""
        states = self._chosen_states(numbers, kind)
        yield states
        if states is not self._states:
            for name, stack in states.items():
                self._states[name][list(numbers)] = stack

    def check(self, stack: Tensor, numbers: Sequence[int], what: str) -> None:
        """Validates that the numbers of these blocks are finite.

        Args:
            stack: the numbers, one entry for each of ``numbers``.
            numbers: the numbers of the blocks.
            what: what they are, for the message.

        Raises:
            DivergedError: naming the first block whose numbers are not finite.
        """
        if stack.sum().isfinite():
            return
        for place, number in enumerate(numbers):
            if not stack[place].isfinite().all():
                raise divergence_error(self._names[number], what)

    def _statistics_interval(self, config: ShampooArguments) -> int:
        """Returns the steps between two gradients that update the second moments.

        Blocks of one dimension are updated with every gradient: each gradient has only one direction, and a few of them
        would be mistaken for all directions.
        """
        return config.statistics_interval if min(self._inner) > 1 else 1

    def update_factors(self, numbers: Sequence[int], gradients: Tensor, step: int, config: ShampooArguments) -> None:
        """Updates the second moments of rows and columns (the factors) with the gradients, if that is due.

        Args:
            numbers: the numbers of the blocks to update.
            gradients: gradients of all blocks, (N, D1, …, P).
            step: the step, counted from 1.
            config: the current settings.
        """
        interval = self._statistics_interval(config)
        if not numbers or step % interval:
            return
        kept, taken = _decay_weights(config, interval)
        gradients = self._chosen(gradients, numbers)
        with self._edited_states(numbers, "factor_") as states:
            for dimension in self._exponents:
                factor, size = states[f"factor_{dimension}"], self._inner[dimension]
                rows = self._products.unfolded(gradients, dimension)
                factor[..., :size].baddbmm_(rows, rows.mT, beta=kept, alpha=taken)

    def update_roots(self, numbers: Sequence[int], step: int, config: ShampooArguments) -> None:
        """Computes new roots of some blocks if that is due, and installs late roots whose step has come.

        Raises:
            DivergedError: a second moment is not finite, or a root fails for the fourth time in a row.
        """
        for number in numbers:
            due, future = self._pending.get(number, (0, None))
            if due == step:
                del self._pending[number]
                self._install_roots(number, self._next_roots(number) if future is None else future.result())
        first_step = config.first_root_step
        if step < first_step or (step > first_step and step % config.precondition_frequency):
            return
        for number in numbers:
            factors = self._factors(number, step, config)
            if self._worker is not None and config.late and step > first_step:
                self._pending[number] = (step + config.late, self._submit_roots(factors, number, config))
            else:
                self._install_roots(number, self._new_roots(factors, number, config))

    def _factors(self, number: int, step: int, config: ShampooArguments) -> dict[int, Tensor]:
        """Returns dimension -> the current, bias-corrected second moments of a block."""
        beta2 = config.betas[1]
        correction = 1 - beta2 ** (step - step % self._statistics_interval(config)) if beta2 < 1 else 1.0
        found: dict[int, Tensor] = {}
        for dimension in self._exponents:
            found[dimension] = self._states[f"factor_{dimension}"][number, :, : self._inner[dimension]] / correction
            self.check(found[dimension][None], [number], f"matrix of second moments of dimension {dimension}")
        return found

    def _submit_roots(self, factors: Mapping[int, Tensor], number: int, config: ShampooArguments) -> Future[NewRoots]:
        """Runs :meth:`_new_roots` in the worker thread.

        It uses as many torch threads as the calling thread, since the last bits depend on their number.
        """
        assert self._worker is not None
        threads = torch.get_num_threads()

        def compute() -> NewRoots:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            return self._new_roots(factors, number, config)

        return self._worker.submit(compute)

    def _new_roots(self, factors: Mapping[int, Tensor], number: int, config: ShampooArguments) -> NewRoots:
        """Computes new roots and eigenvectors of a block; runs in the worker thread if they may be late."""
        found: NewRoots = {}
        for dimension, factor_DD in factors.items():
            root, basis = f"root_{dimension}", f"basis_{dimension}"
            try:
                if root in self._states and config.root != "qr":
                    found[root] = roots.inverse_root(factor_DD, self._exponents[dimension], config.epsilon, config.root)
                    continue
                values_D, vectors_DD = self._eigenvectors(factor_DD, number, basis, config)
                if root in self._states:
                    found[root] = roots.root_from_eigenvectors(
                        values_D, vectors_DD, self._exponents[dimension], config.epsilon
                    )
                found[basis] = vectors_DD
            except RootError as error:
                found[basis if root not in self._states else root] = error
        return found

    def _eigenvectors(
        self, factor_DD: Tensor, number: int, basis: str, config: ShampooArguments
    ) -> tuple[Tensor, Tensor]:
        before_DD = self._square(basis, number)
        identity_DD = torch.eye(len(before_DD), dtype=before_DD.dtype, device=before_DD.device)
        if config.root == "eigh":
            return roots.eigenvectors(factor_DD)
        if torch.equal(before_DD, identity_DD):  # the first time there are no previous eigenvectors
            values_D, vectors_DD = roots.eigenvectors(factor_DD)
            return values_D.flip(0), vectors_DD.flip(1)  # in the order that power iteration keeps
        return roots.power_iteration(factor_DD, before_DD)

    def _next_roots(self, number: int) -> NewRoots:
        return {name: self._square(f"next_{name}", number) for name in self._root_names}

    def _square(self, name: str, number: int) -> Tensor:
        stack = self._states[name]
        return stack[number, :, : stack.shape[-2]]

    def _install_roots(self, number: int, found: NewRoots) -> None:
        """Installs new roots and eigenvectors; keeps the previous ones where the computation failed."""
        for name, result in found.items():
            key = (number, name)
            if not isinstance(result, RootError):
                self._failures.pop(key, None)
                self._square(name, number).copy_(result)
                if f"next_{name}" in self._states:  # so that a saved state does not depend on earlier saves
                    self._square(f"next_{name}", number).copy_(result)
                continue
            failures = self._failures[key] = self._failures.get(key, 0) + 1
            what = f"{self._names[number]}, dimension {_dimension(name)}: {result}"
            if failures > MOST_FAILURES:
                raise DivergedError(
                    f"{what}; for the {failures}th time in a row",
                    "raise epsilon, lower the learning rate, or use root: eigh",
                )
            _log.warning("%s; the last one is kept (%d of %d times)", what, failures, MOST_FAILURES)

    def update_moments(self, numbers: Sequence[int], gradients: Tensor, step: int, config: ShampooArguments) -> None:
        """Updates the second moments in the eigenbasis with the gradients, if that is due.

        They are updated in the same steps as the factors, so that most steps only rotate the mean into the eigenbasis;
        in the first steps they are updated every time.

        Args:
            numbers: the numbers of the blocks to update.
            gradients: gradients of all blocks, (N, D1, …, P).
            step: the step, counted from 1; roots have been computed.
            config: the current settings.
        """
        counts = 1 if step < config.first_direction_step else self._statistics_interval(config)
        if config.form != "eigenbasis" or not numbers or step < config.first_root_step or step % counts:
            return
        kept, taken = _decay_weights(config, counts)
        self._root = None
        bases = self._chosen_states(numbers, "basis_")
        rotated = self._products.unpadded(self._rotated(bases, self._chosen(gradients, numbers)))
        with self._edited_states(numbers, "moment") as states:
            moment = self._products.unpadded(states["moment"])
            moment.mul_(kept).addcmul_(rotated, rotated, value=taken)

    def direction(
        self, numbers: Sequence[int], mean: Tensor, share: float, step: int, config: ShampooArguments
    ) -> Tensor:
        """Returns the preconditioned directions of some blocks, (len(numbers), D1, …, Dk), valid until the next call.

        Args:
            numbers: the numbers of the blocks.
            mean: moving means of the gradients of all blocks, (N, D1, …, P).
            share: factor by which the mean is smaller than the bias-corrected one; the direction is by the same factor.
            step: the step, at least ``config.first_direction_step``; roots have been computed.
            config: the current settings.
        """
        mean = self._chosen(mean, numbers)
        if config.form == "eigenbasis":
            return self._in_basis(self._chosen_states(numbers, "moment", "basis_"), mean, share, step, config)
        found = mean
        for dimension in self._exponents:
            found = self._products.along(found, self._chosen(self._states[f"root_{dimension}"], numbers), dimension)
        return self._products.unpadded(found)

    def _in_basis(
        self, states: Mapping[str, Tensor], mean: Tensor, share: float, step: int, config: ShampooArguments
    ) -> Tensor:
        """Returns Adam's direction in the basis of the eigenvectors (Vyas et al. 2024, algorithm 3).

        Its entries are clamped to at most 1. In Adam they do not exceed 1 for long, since its second moments include
        every gradient of the mean; here they include only some.
        """
        beta2, interval = config.betas[1], self._statistics_interval(config)
        seen = MOMENT_WARMUP_STEPS + interval * (step // interval - (config.first_direction_step - 1) // interval)
        correction = math.sqrt(1 - beta2**seen) if beta2 < 1 else 1.0
        rotated = self._rotated(states, mean)
        root = self._root_of_moments(states["moment"], correction, config.epsilon)
        self._products.unpadded(rotated).div_(root).clamp_(-share / correction, share / correction)
        if config.graft.name == "none":  # else the graft determines the norm
            rotated.mul_(correction)
        return self._products.unpadded(self._rotated(states, rotated, back=True))

    def _root_of_moments(self, moment: Tensor, correction: float, epsilon: float) -> Tensor:
        """Returns √V + ε of some blocks, V without bias correction; for all blocks it is cached until V changes."""
        changes = 0 if moment.is_inference() else moment._version
        of, is_all = (correction, epsilon, changes), moment is self._states["moment"]
        if is_all and self._root is not None and self._root[1] == of:
            return self._root[0]
        root = self._products.unpadded(self._products.output(len(moment)))
        root.copy_(self._products.unpadded(moment)).sqrt_().add_(epsilon * correction)
        if is_all:
            self._root = root, of
        return root

    def _rotated(self, states: Mapping[str, Tensor], stack: Tensor, back: bool = False) -> Tensor:
        """Rotates a stack into the basis of the eigenvectors, or ``back``; later calls may overwrite the result."""
        for dimension in self._exponents:
            stack = self._products.along(stack, states[f"basis_{dimension}"], dimension, transposed=not back)
        return stack


def _single_counts(shape: Sequence[int], config: ShampooArguments) -> bool:
    """Returns whether a dimension of one number has a second moment: whether it changes a block's direction.

    Its matrix is a single number, which scales the whole block. A graft sets the block's norm anyway, and a rotation
    leaves single numbers as they are, so in the eigenbasis one such dimension is needed only if there is no other.
    """
    return config.graft.name == "none" and (config.form == "roots" or max(shape) == 1)


def _decay_weights(config: ShampooArguments, steps: int) -> tuple[float, float]:
    """Returns the factors of the old second moments and of a gradient that counts for ``steps`` steps."""
    kept = config.betas[1] ** steps
    return kept, 1 - kept if kept < 1 else float(steps)


def divergence_error(name: str, what: str) -> DivergedError:
    """Returns the error for a block with numbers that are not finite.

    Args:
        name: name of the block.
        what: what the numbers are, such as "gradient".
    """
    return DivergedError(
        f"{name}: its {what} has numbers that are not finite",
        "lower the learning rate or clip gradients (training.clip_norm); a checkpoint has the weights from before",
    )


def _is_square(name: str) -> bool:
    return name.startswith(("factor_", "root_", "basis_", "next_"))


def _dimension(name: str) -> int:
    """Returns the dimension of a factor's state from its name: 1 for ``root_1``."""
    return int(name.rpartition("_")[2])

"""Equal blocks, worked on together: second moments, roots, and the update.

Blocks of one shape lie in one tensor, and each operation is one call for all of them.

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
from ziggurat.optim.shampoo.arguments import WARM, ShampooArguments
from ziggurat.optim.shampoo.products import Products, inner, padded, padded_shape
from ziggurat.optim.shampoo.roots import RootError

MOST_FAILURES = 3
"""Roots of one factor that may fail one after the other; the last good one is used meanwhile."""

Found = dict[str, Tensor | RootError]
"""Name of a state -> what it becomes, or why it does not."""

_log = logging.getLogger(__name__)


class BlockBatch:
    """Equal blocks of parameters with the same settings. Second moments, roots and directions are for those that have
    them: where :attr:`is_turned`.

    Args:
        names: of the blocks, for messages.
        shape: of each.
        turned: whether there is more to their steps than the graft's, if their dimensions have exponents.
        config: what shapes the state: graft, form, exponents, whether there are means and momentum.
        like: a tensor of the type and on the device that states and updates have.
        plain: name -> state of each number of all blocks (N, D1, …, P): somebody else's, to be told of.
        worker: takes roots that may be late.
    """

    def __init__(
        self,
        names: Sequence[str],
        shape: tuple[int, ...],
        turned: bool,
        config: ShampooArguments,
        like: Tensor,
        plain: Mapping[str, Tensor],
        worker: ThreadPoolExecutor | None = None,
    ) -> None:
        self._names, self._shape, self._plain, self._worker = names, shape, plain, worker
        self._inner = inner(shape)
        self._like = like
        first = len(self._inner) - len(shape)
        exponents = {
            first + number: config.exponent(len(shape), number) for number, size in enumerate(shape) if size > 1
        }
        self._exponents = {number: each for number, each in exponents.items() if each and turned}
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
        self._products = Products(len(names), shape, like)
        self._root: tuple[Tensor, tuple[float, ...]] | None = None
        """Of second moments in the eigenbasis, plus epsilon, and what beside them it is of, until they change."""
        self._failures: dict[tuple[int, str], int] = {}
        self._coming: dict[int, tuple[int, Future[Found] | None]] = {}

    def __len__(self) -> int:
        return len(self._names)

    @property
    def is_turned(self) -> bool:
        """Whether there is more to these blocks' steps than the graft's."""
        return bool(self._exponents)

    def _begun(self, config: ShampooArguments) -> dict[str, Tensor]:
        """Name of a state -> of all blocks, as before the first step."""
        held: dict[str, Tensor] = {}
        if config.form == "eigenbasis" and self._exponents:
            held["moment"] = self._like.new_zeros(padded_shape(len(self._names), self._shape))
        for dimension in self._exponents:
            size = self._inner[dimension]
            held[f"factor_{dimension}"] = padded(len(self._names), (size, size), self._like)
        for name in self._turns:
            size = self._inner[_dimension(name)]
            held[name] = padded(len(self._names), (size, size), self._like)
            held[name][..., :size] = torch.eye(size, dtype=self._like.dtype, device=self._like.device)
            if config.late:
                held[f"next_{name}"] = held[name].clone()
        return held

    def block(self, stack: Tensor, number: int) -> Tensor:
        """One block of a stack of them, a view in the block's own shape."""
        found = stack[number, ..., : self._inner[-1]]
        return found if len(self._shape) > 1 else found[0]

    def state(self, number: int) -> dict[str, Tensor]:
        """Name -> state of a block, live."""
        return {
            name: self._square(name, number) if _is_square(name) else self.block(stack, number)
            for name, stack in {**self._plain, **self._held}.items()
        }

    def settle(self) -> None:
        """Have the state hold roots that are on their way, so that it can be saved."""
        for number, (_, future) in self._coming.items():
            if future is not None:
                for name, found in future.result().items():  # what failed is seen to when it is due
                    held = self._square(name, number) if isinstance(found, RootError) else found
                    self._square(f"next_{name}", number).copy_(held)

    def resumed(self, number: int, step: int, config: ShampooArguments) -> None:
        """A block's state was replaced by that of step ``step``."""
        self._coming.pop(number, None)
        self._root = None
        taken = step - step % config.precondition_frequency
        if config.late and taken > config.begins and step < taken + config.late:
            self._coming[number] = (taken + config.late, None)

    def _chosen(self, stack: Tensor, numbers: Sequence[int]) -> Tensor:
        """Of a stack some blocks: a copy, unless they are all."""
        return stack if len(numbers) == len(self._names) else stack[list(numbers)]

    def _chosen_states(self, numbers: Sequence[int], *kinds: str) -> dict[str, Tensor]:
        """Those of some blocks whose names begin so: copies, unless they are all; then all states there are."""
        if len(numbers) == len(self._names):
            return self._held
        return {name: self._chosen(stack, numbers) for name, stack in self._held.items() if name.startswith(kinds)}

    @contextlib.contextmanager
    def _those(self, numbers: Sequence[int], kind: str) -> Generator[dict[str, Tensor]]:
        """States of some blocks whose names begin so, to be changed in place."""
        held = self._chosen_states(numbers, kind)
        yield held
        if held is not self._held:
            for name, stack in held.items():
                self._held[name][list(numbers)] = stack

    def check(self, stack: Tensor, numbers: Sequence[int], what: str) -> None:
        """Raises a DivergedError that names the first of these blocks whose numbers are not finite."""
        if stack.sum().isfinite():
            return
        for place, number in enumerate(numbers):
            if not stack[place].isfinite().all():
                raise diverged(self._names[number], what)

    def _every(self, config: ShampooArguments) -> int:
        """Steps from one gradient that second moments take in to the next. Of one dimension there is one direction in
        each; few of them would be taken for all that there are."""
        return config.statistics if min(self._inner) > 1 else 1

    def gather(self, numbers: Sequence[int], gradients: Tensor, step: int, config: ShampooArguments) -> None:
        """Second moments of rows and columns of some blocks take in their gradients, where that is due.

        Args:
            numbers: which.
            gradients: (N, D1, …, P) of all.
            step: from 1.
            config: as it is now.
        """
        every = self._every(config)
        if not numbers or step % every:
            return
        kept, taken = _weights(config, every)
        gradients = self._chosen(gradients, numbers)
        with self._those(numbers, "factor_") as held:
            for dimension in self._exponents:
                factor, size = held[f"factor_{dimension}"], self._inner[dimension]
                rows = self._products.unfolded(gradients, dimension)
                factor[..., :size].baddbmm_(rows, rows.mT, beta=kept, alpha=taken)

    def turn(self, numbers: Sequence[int], step: int, config: ShampooArguments) -> None:
        """Take new roots of some blocks where that is due, and use those that have come.

        Raises:
            DivergedError: a second moment is not finite, or a root fails for the fourth time running.
        """
        for number in numbers:
            due, future = self._coming.get(number, (0, None))
            if due == step:
                del self._coming[number]
                self._put(number, self._next(number) if future is None else future.result())
        begins = config.begins
        if step < begins or (step > begins and step % config.precondition_frequency):
            return
        for number in numbers:
            factors = self._factors(number, step, config)
            if self._worker is not None and config.late and step > begins:
                self._coming[number] = (step + config.late, self._later(factors, number, config))
            else:
                self._put(number, self._found(factors, number, config))

    def _factors(self, number: int, step: int, config: ShampooArguments) -> dict[int, Tensor]:
        """Dimension -> second moments of a block as they are now, without the zeros they began with."""
        beta2 = config.betas[1]
        correction = 1 - beta2 ** (step - step % self._every(config)) if beta2 < 1 else 1.0
        found: dict[int, Tensor] = {}
        for dimension in self._exponents:
            found[dimension] = self._held[f"factor_{dimension}"][number, :, : self._inner[dimension]] / correction
            self.check(found[dimension][None], [number], f"matrix of second moments of dimension {dimension}")
        return found

    def _later(self, factors: Mapping[int, Tensor], number: int, config: ShampooArguments) -> Future[Found]:
        """:meth:`_found` in the worker, with as many threads as here: the last bits depend on them."""
        assert self._worker is not None
        threads = torch.get_num_threads()

        def found() -> Found:
            if torch.get_num_threads() != threads:
                torch.set_num_threads(threads)
            return self._found(factors, number, config)

        return self._worker.submit(found)

    def _found(self, factors: Mapping[int, Tensor], number: int, config: ShampooArguments) -> Found:
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

    def _eigen(self, factor_DD: Tensor, number: int, basis: str, config: ShampooArguments) -> tuple[Tensor, Tensor]:
        before_DD = self._square(basis, number)
        identity_DD = torch.eye(len(before_DD), dtype=before_DD.dtype, device=before_DD.device)
        if config.root == "eigh":
            return roots.eigenvectors(factor_DD)
        if torch.equal(before_DD, identity_DD):  # the first time there is nothing to turn
            values_D, vectors_DD = roots.eigenvectors(factor_DD)
            return values_D.flip(0), vectors_DD.flip(1)  # in the order that power iteration keeps
        return roots.turned(factor_DD, before_DD)

    def _next(self, number: int) -> Found:
        return {name: self._square(f"next_{name}", number) for name in self._turns}

    def _square(self, name: str, number: int) -> Tensor:
        stack = self._held[name]
        return stack[number, :, : stack.shape[-2]]

    def _put(self, number: int, found: Found) -> None:
        """Use what was found; where it failed, what there was before."""
        for name, result in found.items():
            key = (number, name)
            if not isinstance(result, RootError):
                self._failures.pop(key, None)
                self._square(name, number).copy_(result)
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
            _log.warning("%s; the last one is kept (%d of %d times)", what, failures, MOST_FAILURES)

    def observe(self, numbers: Sequence[int], gradients: Tensor, step: int, config: ShampooArguments) -> None:
        """Second moments in the eigenbasis take in gradients, where that is due: when those of rows and columns do, so
        that most steps turn the mean alone, and each at first.

        Args:
            numbers: which blocks.
            gradients: (N, D1, …, P) of all.
            step: from 1; roots have been taken.
            config: as it is now.
        """
        counts = 1 if step < config.leads else self._every(config)
        if config.form != "eigenbasis" or not numbers or step < config.begins or step % counts:
            return
        kept, taken = _weights(config, counts)
        self._root = None
        bases = self._chosen_states(numbers, "basis_")
        there = self._products.unpadded(self._turned(bases, self._chosen(gradients, numbers)))
        with self._those(numbers, "moment") as held:
            moment = self._products.unpadded(held["moment"])
            moment.mul_(kept).addcmul_(there, there, value=taken)

    def direction(
        self, numbers: Sequence[int], mean: Tensor, share: float, step: int, config: ShampooArguments
    ) -> Tensor:
        """Where some blocks are to go, as far as may be; (len(numbers), D1, …, Dk), until the next call.

        Args:
            numbers: which.
            mean: of the gradients, (N, D1, …, P) of all blocks.
            share: of the mean, what it is of one without the zeros it began with; so is what is returned.
            step: from ``config.leads``; roots have been taken.
            config: as it is now.
        """
        mean = self._chosen(mean, numbers)
        if config.form == "eigenbasis":
            return self._in_basis(self._chosen_states(numbers, "moment", "basis_"), mean, share, step, config)
        found = mean
        for dimension in self._exponents:
            found = self._products.along(found, self._chosen(self._held[f"root_{dimension}"], numbers), dimension)
        return self._products.unpadded(found)

    def _in_basis(
        self, held: Mapping[str, Tensor], mean: Tensor, share: float, step: int, config: ShampooArguments
    ) -> Tensor:
        """Adam, in the basis of the eigenvectors (Vyas et al. 2024, algorithm 3). No number is above 1, as in Adam none
        is for long, whose second moments have seen each gradient that the mean has."""
        beta2, every = config.betas[1], self._every(config)
        seen = WARM + every * (step // every - (config.leads - 1) // every)
        correction = math.sqrt(1 - beta2**seen) if beta2 < 1 else 1.0
        there = self._turned(held, mean)
        root = self._root_of(held["moment"], correction, config.epsilon)
        self._products.unpadded(there).div_(root).clamp_(-share / correction, share / correction)
        if config.graft.name == "none":  # else the graft says how long it is
            there.mul_(correction)
        return self._products.unpadded(self._turned(held, there, back=True))

    def _root_of(self, moment: Tensor, correction: float, epsilon: float) -> Tensor:
        """√V + ε of some blocks, the zeros that V began with left in; of all of them kept until V changes."""
        changes = 0 if moment.is_inference() else moment._version
        of, is_all = (correction, epsilon, changes), moment is self._held["moment"]
        if is_all and self._root is not None and self._root[1] == of:
            return self._root[0]
        root = self._products.unpadded(self._products.room(len(moment)))
        root.copy_(self._products.unpadded(moment)).sqrt_().add_(epsilon * correction)
        if is_all:
            self._root = root, of
        return root

    def _turned(self, held: Mapping[str, Tensor], stack: Tensor, back: bool = False) -> Tensor:
        """Into the basis of the eigenvectors, or back, for the next call but one."""
        for dimension in self._exponents:
            stack = self._products.along(stack, held[f"basis_{dimension}"], dimension, transposed=not back)
        return stack


def _weights(config: ShampooArguments, steps: int) -> tuple[float, float]:
    """What second moments keep of themselves, and take of a gradient that counts for so many steps."""
    kept = config.betas[1] ** steps
    return kept, 1 - kept if kept < 1 else float(steps)


def diverged(name: str, what: str) -> DivergedError:
    """What to raise where a block has numbers that are not finite.

    Args:
        name: of the block.
        what: of it.
    """
    return DivergedError(
        f"{name}: its {what} has numbers that are not finite",
        "lower the learning rate or clip gradients (training.clip_norm); a checkpoint has the weights from before",
    )


def _is_square(name: str) -> bool:
    return name.startswith(("factor_", "root_", "basis_", "next_"))


def _dimension(name: str) -> int:
    """Of the state of a factor: ``root_1``."""
    return int(name.rpartition("_")[2])

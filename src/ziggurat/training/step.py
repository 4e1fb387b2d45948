"""One step on one batch, by all ranks together: look up, interact, loss, backward, update.

Where there are several ranks, the ids of the next batch travel while this one is computed: how many go where is sent
before this batch's rows are, and known when these have come; then the ids themselves set out.

Shape legend: B rows, F features, D embedding width, T tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ziggurat.core.batch import Batch
from ziggurat.data.encoded.loader import Cursor
from ziggurat.embeddings.lookup import EmbeddingLookup, StartedLookup
from ziggurat.parallel.agreement import StepAgreement
from ziggurat.parallel.dense import gradient_sync
from ziggurat.parallel.shared_memory import SharedSlots
from ziggurat.parallel.world import World
from ziggurat.training.loss import weighted_loss
from ziggurat.training.recommender import Recommender


@dataclass(frozen=True, slots=True)
class StepWork:
    """A batch on its device, the cursor behind it, and its lookup where that is begun."""

    batch: Batch
    cursor: Cursor
    started: StartedLookup | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came of a step.

    Attributes:
        loss: sum over this rank's rows, weighted.
        weight: sum of their weights.
        stopping: whether any rank wants training to stop.
    """

    loss: Tensor
    weight: Tensor
    stopping: bool


def prefetched_batches(
    batches: Iterable[tuple[Batch, Cursor]], lookup: EmbeddingLookup, device: torch.device, pipelined: bool
) -> Generator[tuple[StepWork, Sequence[StepWork]]]:
    """Each batch and those behind it that are begun: their ids are on their way already, one batch's if ``pipelined``,
    more where rows must be brought from a disk.

    Who stops early lets these arrive (:meth:`EmbeddingLookup.drop <ziggurat.embeddings.lookup.EmbeddingLookup.drop>`),
    unless a step has failed: then the other ranks may not answer any more.
    """
    ahead = max(lookup.prefetch_batches, int(pipelined))
    line: deque[StepWork] = deque()
    for batch, cursor in batches:
        moved = batch.to(device)
        line.append(StepWork(moved, cursor, lookup.start(moved) if ahead else None))
        if len(line) > ahead:
            yield line.popleft(), tuple(line)
    while line:
        yield line.popleft(), tuple(line)


class Stepper:
    """Takes steps.

    Args:
        recommender: in training mode.
        optimizer: of its dense parameters.
        l2: factor of the penalty on the batch's vectors.
        clip_norm: of the dense gradients, or None.
        slots: in which ranks that share memory agree, if they do.
    """

    def __init__(
        self,
        recommender: Recommender,
        optimizer: torch.optim.Optimizer,
        l2: float,
        clip_norm: float | None,
        slots: SharedSlots | None = None,
    ) -> None:
        self._recommender, self._optimizer = recommender, optimizer
        self._l2, self._clip_norm = l2, clip_norm
        self._ranks, self._slots = World.current().size, slots
        self._waiting = 0

    def __call__(
        self, work: StepWork, following: StepWork | None = None, stopping: bool = False, due: bool = True
    ) -> StepResult:
        """One step; of the tables alone, unless the dense part is ``due``.

        Args:
            work: the batch.
            following: the next one, where it is begun.
            stopping: whether this rank wants training to stop.
            due: false lets the dense gradients wait for those of the next batch.
        """
        with gradient_sync(self._recommender.dense, due):
            done = self._backward(work, following, stopping)
        self._waiting += 1
        if due:
            self._update()
        return done

    def _backward(self, work: StepWork, following: StepWork | None, stopping: bool) -> StepResult:
        batch, lookup = work.batch, self._recommender.lookup
        alone = self._ranks == 1 or batch.weights_B is None
        own = float(batch.size) if alone or batch.weights_B is None else float(batch.weights_B.sum())
        agreement = StepAgreement(batch.size, own, stopping, self._slots)
        logits_BT, emb_BFD = self._recommender(batch, work.started, None if following is None else following.started)
        loss, weight = weighted_loss(logits_BT, batch)
        agreed = agreement.result()
        # Gradients are averaged over the ranks, so each rank's share of the loss counts as often as there are ranks.
        objective = loss / weight if self._ranks == 1 else loss * (self._ranks / agreed.weight)
        if self._l2:
            objective = objective + self._l2 / 2 * emb_BFD.square().sum() / agreed.rows * self._ranks
        objective.backward()
        lookup.exchange()
        return StepResult(loss, weight, agreed.stopping)

    def _update(self) -> None:
        """The dense optimizer's step, with the mean of the gradients of the batches that waited for it."""
        if self._waiting > 1 or self._clip_norm is not None:
            parameters = list(self._recommender.dense_parameters().values())
            for each in parameters:
                if self._waiting > 1 and each.grad is not None:
                    each.grad.div_(self._waiting)
            if self._clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(parameters, self._clip_norm)
        self._waiting = 0
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

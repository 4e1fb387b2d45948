"""One training step on one batch, by all ranks together: look up, interact, loss, backward, update.

With several ranks, the ids of the next batch are exchanged while this one is computed. The counts of ids per rank are
sent before this batch's rows and are known when these have arrived; then the ids themselves are sent.

A batch whose weights sum to 0 over all ranks has no mean loss. It is looked up and computed, since the exchanges of the
batches around it go on, but it changes no weight and no optimizer state, of tables or of the dense part.

Shape legend: B rows, F features, D embedding width, T tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

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
    """A batch to train on.

    Attributes:
        batch: this rank's rows, on the device.
        cursor: the cursor after the batch.
        weight: the sum of these rows' weights; without weights, their number.
        started: the batch's in-flight lookup, if started.
    """

    batch: Batch
    cursor: Cursor
    weight: float
    started: StartedLookup | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of a step.

    Attributes:
        loss: weighted sum of the loss over this rank's rows.
        weight: sum of the weights of these rows.
        stopping: whether any rank requests that training stops.
    """

    loss: Tensor
    weight: Tensor
    stopping: bool


def prefetched_batches(
    batches: Iterable[tuple[Batch, Cursor]], lookup: EmbeddingLookup, device: torch.device, pipelined: bool
) -> Generator[tuple[StepWork, Sequence[StepWork]]]:
    """Yields each batch together with the following batches whose lookups have been started.

    One lookup is started ahead if ``pipelined``, more if rows must be read from a disk. A caller that stops early must
    let the started lookups finish
    (:meth:`EmbeddingLookup.drop <ziggurat.embeddings.lookup.EmbeddingLookup.drop>`), unless a step has failed, because
    then other ranks may no longer answer.
    """
    ahead = max(lookup.prefetch_batches, int(pipelined))
    queue: deque[StepWork] = deque()
    for batch, cursor in batches:
        # Summed here, where the batch still is in the host's memory: later it would have to be waited for.
        weights_B = batch.row_weights
        weight = float(batch.size) if weights_B is None else float(weights_B.sum())
        on_device = batch.to(device)
        queue.append(StepWork(on_device, cursor, weight, lookup.start(on_device) if ahead else None))
        if len(queue) > ahead:
            yield queue.popleft(), tuple(queue)
    while queue:
        yield queue.popleft(), tuple(queue)


class Stepper:
    """Performs training steps.

    Args:
        recommender: the recommender, in training mode.
        optimizer: the optimizer of its dense parameters.
        l2: factor of the penalty on the batch's vectors.
        clip_norm: maximal norm of the dense gradients; None for no clipping.
        slots: shared memory in which ranks of one host agree on a step, if they share memory.
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
        """Performs one step, which updates the dense part only if ``due``.

        Args:
            work: the batch.
            following: the next batch, if its lookup is started.
            stopping: whether this rank requests that training stops.
            due: whether the dense optimizer makes its step; if not, gradients accumulate for the next batch. It makes
                none if no batch since the last one had a weight above 0.
        """
        agreement = StepAgreement(work.batch.size, work.weight, stopping, self._slots)
        # A rank whose rows count need not wait here to know that the batch does.
        counts = work.weight != 0 or agreement.result().weight != 0
        # Gradients accumulated on each rank are averaged in a backward pass, if need be in one that adds nothing.
        backward = counts or (due and self._waiting > 0 and self._ranks > 1)
        with gradient_sync(self._recommender.dense, due and backward):
            done = self._pass(work, following, agreement, counts, backward)
        towers = self._recommender.lookup.towers
        if towers is not None and due and backward:
            towers.average_gradients()
        self._waiting += counts
        if due and self._waiting:
            self._update()
        return done

    def _pass(
        self, work: StepWork, following: StepWork | None, agreement: StepAgreement, counts: bool, backward: bool
    ) -> StepResult:
        """Computes the batch, and its gradients if ``backward``; without ``counts`` these are zeros, and tables have
        none."""
        batch, lookup = work.batch, self._recommender.lookup
        next_lookup = None if following is None else following.started
        columns_BC, emb_BFD = self._recommender(batch, work.started, next_lookup, trains_tables=counts)
        loss, weight = weighted_loss(self._recommender.outputs, columns_BC, batch)
        agreed = agreement.result()
        if not counts:
            if backward:
                loss.backward()
            lookup.release()
            return StepResult(loss, weight, agreed.stopping)
        # Gradients are averaged over the ranks, so each rank's loss is multiplied by the number of ranks.
        objective = loss / weight if self._ranks == 1 else loss * (self._ranks / agreed.weight)
        if self._l2:
            objective = objective + self._l2 / 2 * emb_BFD.square().sum() / agreed.rows * self._ranks
        objective.backward()
        lookup.exchange()
        return StepResult(loss, weight, agreed.stopping)

    def _update(self) -> None:
        """Makes the dense optimizer's step with the mean gradient of the batches since the last one that count."""
        if self._waiting > 1 or self._clip_norm is not None:
            parameters = list(self._recommender.dense_parameters().values())
            for each in parameters:
                if self._waiting > 1 and each.grad is not None:
                    each.grad.div_(self._waiting)
            if self._clip_norm is not None:
                self._clip(parameters, self._clip_norm)
        self._waiting = 0
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)

    def _clip(self, parameters: Sequence[nn.Parameter], clip_norm: float) -> None:
        """Scales all gradients to a norm of at most ``clip_norm``, which is over the towers of all hosts."""
        towers = self._recommender.lookup.towers
        if towers is None or next(towers.parameters(), None) is None:
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
            return
        own = {id(each) for each in towers.parameters()}
        grads = [each.grad for each in parameters if each.grad is not None and id(each) not in own]
        of_towers = [each.grad for each in towers.parameters() if each.grad is not None]
        squares = towers.ranks.sum_of_hosts(torch.nn.utils.get_total_norm(of_towers).square().reshape(1))
        total = (torch.nn.utils.get_total_norm(grads).square() + squares[0]).sqrt()
        torch.nn.utils.clip_grads_with_norm_(parameters, clip_norm, total)

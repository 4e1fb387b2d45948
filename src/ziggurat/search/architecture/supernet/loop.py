"""Trains a super-net: a warm-up of the weights, then weights and architecture in turn, on rows of their own.

In a pass, the weights see each of their rows once. After a step of the weights follow as many steps of the architecture
as keep both at equal shares of their rows. What decides the next step is in a checkpoint, so that a search that was
stopped goes on as if it had not been, bit for bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from ziggurat.core.batch import Batch
from ziggurat.core.errors import ConfigError, DivergedError
from ziggurat.core.progress import Progress
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.loader import Cursor, Loader
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.parallel.shared_memory import shared_slots
from ziggurat.parallel.world import World
from ziggurat.search.architecture.clock import Clock
from ziggurat.search.architecture.config import SuperNetConfig
from ziggurat.search.architecture.space.decision import Masks, hard_masks
from ziggurat.search.architecture.space.whole_space import CostName, WholeSpace
from ziggurat.search.architecture.supernet.architecture_step import ArchitectureStepper
from ziggurat.search.architecture.supernet.relaxation import WEIGHTS, Logits, detached, temperature
from ziggurat.search.architecture.supernet.row_parts import RowPart
from ziggurat.search.architecture.supernet.saving import HistoryPoint, SearchSaving
from ziggurat.search.architecture.supernet.super_net import SuperRecommender
from ziggurat.training.signals import StopRequest
from ziggurat.training.step import Stepper, StepWork

POINTS = 100
"""Points of the history of a search, at most."""
_LOSSES = "weights", "architecture"
_LEAST_HELD_BATCH = 32
"""Rows of a step of the architecture, if batches of weights have as many and the config says nothing."""


class SuperNetTrainer:
    """Trains a super-net from where its last checkpoint left it. All ranks use it in the same way.

    Args:
        recommender: the super-net, freshly opened; the last checkpoint, if any, is restored into it.
        space: the space.
        limits: the limits of costs.
        config: the training of the super-net.
        dataset: the prepared data.
        folder: the folder of the super-net, for its checkpoints.
        device: this rank's device.
        seed: the seed of masks and of the division of the rows.
        settings: a digest of everything that decides the search.
        progress: where to show progress.
        own_passes: passes that the config as it is was trained for; default: ``training.epochs``. The super-net trains
            as many, unless its own config says how many.
    """

    def __init__(
        self,
        recommender: SuperRecommender,
        space: WholeSpace,
        limits: Mapping[CostName, float],
        config: SuperNetConfig,
        dataset: Dataset,
        folder: Path,
        device: torch.device,
        seed: int,
        settings: str,
        progress: Progress,
        own_passes: int | None = None,
    ) -> None:
        self.recommender, self.space, self.config = recommender, space, config
        self.device, self.progress = device, progress
        training, world = space.experiment.training, World.current()
        self._training = training
        self.logits = Logits(space.decisions, seed, config.preference)
        self.optimizer = space.experiment.optimizer.build(recommender.dense_parameters())
        self.optimizer.register_step_pre_hook(_without_unused)
        slots = shared_slots(space.experiment.parallel, world, device)
        self._step = Stepper(recommender, self.optimizer, space.experiment.embeddings.l2, training.clip_norm, slots)
        self.architecture = ArchitectureStepper(recommender, self.logits, space, limits, config)
        self.architecture.project()  # so that what the warm-up draws is near the limits, too

        self._held_batch = self._rows_of_held_batch(world.size)

        def loader(held_out: bool) -> Loader:
            part = RowPart(dataset.split("train"), config.held_out, held_out, seed)
            if part.rows < max(1, world.size):
                raise ConfigError(
                    f"supernet.held_out: {config.held_out} of {dataset.split('train').rows:,} training rows leave "
                    f"{part.rows:,} for {'the architecture' if held_out else 'the weights'}",
                    "give more data, or another share",
                )
            rows = self._held_batch if held_out else training.batch_size
            return Loader(
                part, dataset.schema, min(rows, part.rows), shuffle=True,
                seed=training.seed + held_out, prefetch=0, rank=world.rank, world_size=world.size,
            )  # fmt: skip

        self._weights, self._held = loader(False), loader(True)
        self.steps_per_epoch = self._weights.steps_per_epoch
        most = training.max_steps if config.epochs is None and training.max_steps is not None else math.inf
        self.warmup_steps = int(min(config.warmup_epochs * self.steps_per_epoch, most))
        passes = (config.epochs or own_passes or training.epochs) * self.steps_per_epoch
        self.total_steps = self.warmup_steps + int(min(passes, most))
        self._saving = SearchSaving(
            folder, recommender, self.optimizer, self.logits, self.architecture.optimizer,
            space.experiment.parallel.timeout_s, settings,
        )  # fmt: skip
        self.at = self._saving.restore()
        self._ranks = world.size
        if not world.leads:
            self.at.losses.clear()
        self._held_stream: Iterator[Batch] | None = None

    @property
    def finished(self) -> bool:
        return self.at.step >= self.total_steps

    @property
    def steps_of_architecture(self) -> int:
        """Steps of the architecture in a whole search."""
        return (self.total_steps - self.warmup_steps) * self._held.steps_per_epoch // self.steps_per_epoch

    def train(self, stop: StopRequest, stop_after: int | None = None) -> None:
        """Trains until the end, until a signal, or until ``stop_after`` steps of weights in total; then saves.

        Raises:
            DivergedError: a loss is not finite.
        """
        self.recommender.train()
        self.progress.start("super-net", self.total_steps, "steps")
        clock, before = Clock(), self.at.spent
        stopping = False
        with self._saving.open():
            while not (self.finished or stopping or self._is_reached(stop_after)):
                for batch, cursor in self._weights.epoch(Cursor(self.at.epoch, self.at.rows)):
                    stopping = self.weights_step(batch, cursor, stop.signal is not None)
                    for held in self._due_batches():
                        self.architecture_step(held)
                    self.at.spent = before + clock.spent()
                    self._after_step()
                    if stopping or self.finished or self._is_reached(stop_after):
                        break
            self._save()
            self._saving.finish()
        self.progress.finish()

    def save(self) -> None:
        """Saves the present state."""
        with self._saving.open():
            self._save()
            self._saving.finish()

    def weights_step(self, batch: Batch, cursor: Cursor, stopping: bool = False, masks: Masks | None = None) -> bool:
        """Performs a step of the weights; returns whether any rank requests to stop.

        Args:
            batch: this rank's rows.
            cursor: the cursor after them.
            stopping: whether this rank requests to stop.
            masks: the masks; default: drawn from θ.
        """
        self.recommender.net.masks = self._masks_of_weights() if masks is None else detached(masks)
        rows = batch.row_weights
        weight = float(batch.size) if rows is None else float(rows.sum())
        done = self._step(StepWork(batch.to(self.device), cursor, weight), None, stopping)
        self._add("weights", float(done.loss.detach()), float(done.weight))
        self.at.step, self.at.epoch, self.at.rows = self.at.step + 1, cursor.epoch, cursor.rows
        return done.stopping

    def _masks_of_weights(self) -> Masks:
        if self.config.masks == "hard":
            return hard_masks(self.space.decisions, self.logits.drawn(self.at.step, WEIGHTS))
        return detached(self.logits.masks(self._temperature(), WEIGHTS, self.at.step))

    def architecture_step(self, batch: Batch) -> None:
        """Performs a step of the architecture."""
        loss = self.architecture(batch.to(self.device), self._temperature(), self.at.architecture_steps)
        self._add("architecture", loss, 1.0)
        self.at.architecture_steps += 1

    def batches(self) -> tuple[Iterator[tuple[Batch, Cursor]], Iterator[Batch]]:
        """Returns the next batches of the weights, and those of the architecture, from the present state on."""
        return self._weights.epoch(Cursor(self.at.epoch, self.at.rows)), self._held_batches()

    def _due_batches(self) -> Iterator[Batch]:
        """Yields the batches of the architecture that follow the step of the weights that was just made."""
        done = max(0, self.at.step - self.warmup_steps)
        due = done * self._held.steps_per_epoch // self.steps_per_epoch - self.at.architecture_steps
        if self._held_stream is None:
            self._held_stream = self._held_batches()
        return itertools.islice(self._held_stream, max(0, due))

    def _rows_of_held_batch(self, ranks: int) -> int:
        """Returns the rows of a step of the architecture on all ranks together.

        Raises:
            ConfigError: they are fewer than the ranks.
        """
        given, whole = self.config.held_out_batch, self._training.batch_size
        if given is None:
            return max(ranks, whole // 4, min(whole, _LEAST_HELD_BATCH))
        if given < ranks:
            raise ConfigError(
                f"supernet.held_out_batch: received {given}, which {ranks} ranks cannot share", f"give at least {ranks}"
            )
        return given

    def _held_batches(self) -> Iterator[Batch]:
        epoch, step = divmod(self.at.architecture_steps, self._held.steps_per_epoch)
        position = Cursor(epoch, step * min(self._held_batch, self._held.rows))
        while True:
            for batch, cursor in self._held.epoch(position):
                yield batch
                position = cursor
            position = Cursor(position.epoch, 0)

    def _temperature(self) -> float:
        done = max(0, self.at.step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return temperature(self.config.temperature, self.config.last_temperature, done)

    def _after_step(self) -> None:
        every = max(1, self.total_steps // POINTS)
        if self.at.step % every == 0 or self.finished:
            self._record()
        save_every = self._training.save_every
        if (save_every is not None and self.at.step % save_every == 0) or self.at.rows == 0:
            self._save()

    def _save(self) -> None:
        """Saves the present state, unless it has diverged: the checkpoint before is the last one to resume from."""
        self.recommender.lookup.check_ids()
        self._mean_losses()
        self._saving.save(self.at)

    def _mean_losses(self) -> dict[str, float]:
        """Returns the mean losses since the last point of the history, of all ranks, which call it together.

        The first rank has the sums from then on: what it saves is what a resume goes on from.

        Raises:
            DivergedError: one is not finite.
        """
        self._gather_losses()
        sums = self.at.losses
        means = on_first_rank(lambda: {name: total / weight for name, (total, weight) in sums.items() if weight})
        for value in means.values():
            if not math.isfinite(value):
                raise DivergedError(
                    f"the loss of the super-net became {value} by step {self.at.step}",
                    "lower optimizer.lr and embeddings.optimizer.lr, or set training.clip_norm",
                )
        return means

    def _gather_losses(self) -> None:
        if self._ranks == 1:
            return
        sums = torch.tensor(
            [self.at.losses.get(name, (0.0, 0.0)) for name in _LOSSES], dtype=torch.float64, device=self.device
        )
        dist.all_reduce(sums)
        self.at.losses.clear()
        if World.current().leads:
            self.at.losses.update({name: (each[0], each[1]) for name, each in zip(_LOSSES, sums.tolist(), strict=True)})

    def _record(self) -> None:
        means = self._mean_losses()
        self.at.losses.clear()
        with torch.no_grad():
            probabilities = self.logits.probabilities()
            costs = {name: float(value) for name, value in self.space.expected_costs(probabilities).items()}
        self.at.history.append(
            HistoryPoint(
                self.at.step,
                self._temperature(),
                {name: probabilities[name].tolist() for name in self.logits.parameters},
                costs,
                means.get("weights"),
                means.get("architecture"),
            )
        )
        self.progress.advance(self.at.step, **{f"{name}_loss": value for name, value in means.items()})

    def _add(self, name: str, total: float, weight: float) -> None:
        before = self.at.losses.get(name, (0.0, 0.0))
        self.at.losses[name] = (before[0] + total, before[1] + weight)

    def _is_reached(self, stop_after: int | None) -> bool:
        return stop_after is not None and self.at.step >= stop_after


def _without_unused(optimizer: torch.optim.Optimizer, *_: object) -> None:
    """Takes away gradients of zeros, which several ranks have of weights that no choice uses: these must not move."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not parameter.grad.any():
                parameter.grad = None

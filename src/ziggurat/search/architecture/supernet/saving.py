"""Saves and restores a search in the super-net: weights, rows, θ, all optimizers, random numbers, and the position."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.checkpoint.folder import CHECKPOINTS, CheckpointFolder
from ziggurat.checkpoint.saver import Saver
from ziggurat.core.engine import library_versions
from ziggurat.core.errors import RunFolderError
from ziggurat.core.sealed import declared
from ziggurat.core.untrusted import Damage
from ziggurat.parallel.agreement import on_first_rank
from ziggurat.search.architecture.clock import Spent
from ziggurat.search.architecture.supernet.relaxation import Logits
from ziggurat.search.architecture.supernet.super_net import SuperRecommender
from ziggurat.training.recommender_state import dense_state, optimizer_slices, restore_optimizer, resume, table_shapes

_LOGITS, _OPTIMIZER = "architecture", "architecture_optimizer"


@dataclass(frozen=True, slots=True)
class HistoryPoint:
    """What a search looked like at one time.

    Attributes:
        step: steps of weights done.
        temperature: the temperature of the masks.
        probabilities: of each choice of each open decision.
        costs: the expected costs.
        weights_loss: mean loss of the batches that trained the weights since the last point; None without any.
        architecture_loss: the same of those that trained the architecture.
    """

    step: int
    temperature: float
    probabilities: dict[str, list[float]]
    costs: dict[str, float]
    weights_loss: float | None
    architecture_loss: float | None


@dataclass(slots=True)
class SearchState:
    """The position of a search in the super-net.

    Attributes:
        step: steps of weights done.
        architecture_steps: steps of the architecture done.
        epoch: passes over the rows that train weights.
        rows: rows of the present pass that are done.
        seconds: wall-clock of opening and training so far, of all calls.
        cpu_seconds: processor seconds of the same.
        history: a point at each interval.
        losses: of weights and architecture: the sum, and the weight that it is of, since the last point.
    """

    step: int = 0
    architecture_steps: int = 0
    epoch: int = 0
    rows: int = 0
    seconds: float = 0.0
    history: list[HistoryPoint] = field(default_factory=list[HistoryPoint])
    losses: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    cpu_seconds: float = 0.0

    @property
    def spent(self) -> Spent:
        return Spent(self.seconds, self.cpu_seconds)

    @spent.setter
    def spent(self, value: Spent) -> None:
        self.seconds, self.cpu_seconds = value.seconds, value.cpu_seconds


@dataclass(frozen=True, slots=True)
class _Saved:
    step: int
    architecture_steps: int
    epoch: int
    rows: int
    seconds: float
    history: list[HistoryPoint]
    settings: str
    losses: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    cpu_seconds: float = 0.0


class SearchSaving:
    """Saves checkpoints of a super-net, and restores the last one. All ranks use it in the same way.

    Args:
        folder: the folder of the super-net.
        recommender: the super-net.
        optimizer: the optimizer of its weights.
        logits: θ.
        architecture_optimizer: the optimizer of θ; None if every decision has one choice.
        timeout_s: how long ranks wait for each other.
        settings: a digest of everything that decides the search: another search does not resume from here.
    """

    def __init__(
        self,
        folder: Path,
        recommender: SuperRecommender,
        optimizer: torch.optim.Optimizer,
        logits: Logits,
        architecture_optimizer: torch.optim.Optimizer | None,
        timeout_s: float,
        settings: str,
    ) -> None:
        self._folder = CheckpointFolder(folder / CHECKPOINTS, keep=1)
        self._recommender, self._optimizer, self._logits = recommender, optimizer, logits
        self._architecture_optimizer, self._timeout_s = architecture_optimizer, timeout_s
        self._settings = settings
        self._saved = -1

    @contextlib.contextmanager
    def open(self) -> Generator[None]:
        """Runs the thread that writes checkpoints within the context; :meth:`save` needs it."""
        saver = Saver(
            self._folder,
            CheckpointsConfig(policy="full"),
            self._recommender.lookup.shards(),
            table_shapes(self._recommender),
            versions=library_versions(),
            timeout_s=self._timeout_s,
        )
        with saver as self._saver:
            yield

    def save(self, at: SearchState) -> None:
        """Starts a checkpoint of the present state; does nothing if the last one is of this step."""
        if self._saved == at.step:
            return
        dense = dense_state(self._recommender, self._optimizer)
        if dense is not None:
            dense |= self._architecture_state()
        state: dict[str, Any] = {
            "step": at.step,
            "architecture_steps": at.architecture_steps,
            "epoch": at.epoch,
            "rows": at.rows,
            "seconds": at.seconds,
            "cpu_seconds": at.cpu_seconds,
            "history": [_plain(each) for each in at.history],
            "settings": self._settings,
            "losses": {name: list(each) for name, each in at.losses.items()},
        }
        self._saver.save(at.step, dense, state, exact=True)
        self._saved = at.step

    def restore(self) -> SearchState:
        """Restores the last checkpoint; returns the state at the beginning if there is none.

        Raises:
            RunFolderError: the checkpoint is damaged, or of another search.
        """
        last = on_first_rank(self._folder.last)
        if last is None:
            return SearchState()
        checkpoint = self._folder.load(last)
        where = f"{self._folder.where}: checkpoint of step {last:,}"
        damage = Damage(RunFolderError, "delete the folder of the super-net to train it again")
        saved = declared(_Saved, checkpoint.state, where, damage)
        if saved.settings != self._settings:
            raise RunFolderError(f"{where}: is of another search", "name another folder with --run, or delete this one")
        resume(self._recommender, checkpoint, self._optimizer)
        if self._logits.parameters:
            values = checkpoint.whole(_LOGITS)
            loaded: dict[str, Tensor] = {}
            for number, (name, parameter) in enumerate(self._logits.parameters.items()):
                found = values.get(f"{number:04d}")
                if found is None or found.shape != parameter.shape:
                    raise damage.of(where, f"the logits of decision {name!r} are missing or misshapen")
                loaded[name] = found
            self._logits.load(loaded)
        if self._architecture_optimizer is not None and checkpoint.shapes(_OPTIMIZER) is not None:
            restore_optimizer(self._architecture_optimizer, checkpoint, _OPTIMIZER)
        self._saved = saved.step
        return SearchState(
            saved.step, saved.architecture_steps, saved.epoch, saved.rows, saved.seconds, list(saved.history),
            dict(saved.losses), saved.cpu_seconds,
        )  # fmt: skip

    def finish(self) -> None:
        """Waits until the last checkpoint is complete."""
        self._saver.finish()

    def _architecture_state(self) -> dict[str, Tensor]:
        found = {
            f"{_LOGITS}/{number:04d}": each.detach() for number, each in enumerate(self._logits.parameters.values())
        }
        if self._architecture_optimizer is not None:
            for each in optimizer_slices(self._architecture_optimizer):
                found[f"{_OPTIMIZER}/{each.name}"] = each.tensor
        return found


def _plain(point: HistoryPoint) -> dict[str, Any]:
    return {name: getattr(point, name) for name in HistoryPoint.__slots__}

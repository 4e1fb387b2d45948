"""The recommender, which is lookup and model as one module, and how it is assembled from an experiment.

Shape legend: B rows, F features, D embedding width, T tasks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ziggurat.contracts.outputs import check_shape
from ziggurat.core.batch import Batch
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import FrequencyRanks
from ziggurat.embeddings.fields import Fields
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.lookup import EmbeddingLookup, LookedUpRows, StartedLookup
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.interactions.dropout import dropout
from ziggurat.models.model import Model
from ziggurat.objectives.label_figures import LabelFigures
from ziggurat.objectives.outputs import Outputs
from ziggurat.parallel.dense import checkpoint_activations, parallelise
from ziggurat.parallel.norms import synchronise_batch_norms
from ziggurat.parallel.own_random import OwnRandom
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World
from ziggurat.towers.model import TowerModel
from ziggurat.towers.upstream import run_upstream, tower_transform
from ziggurat.training.experiment import Experiment

if TYPE_CHECKING:
    from ziggurat.models.compiled import CompiledModel

CACHED_ROWS = 2048
"""Rows that the dense part predicts at a time on a CPU: their activations fit into a core's cache."""


class DensePart(nn.Module):
    """Maps looked-up rows to logits; it contains everything that the dense optimizer trains."""

    def __init__(
        self, fields: Fields, model: nn.Module, outputs: Outputs, autocast: bool, compiled: bool, dropout: float
    ) -> None:
        super().__init__()
        self.fields, self.model, self.outputs = fields, model, outputs
        self._dropout, self._autocast = dropout, autocast
        self._origin = model.origin if isinstance(model, Model) else None
        self.compiled = compiled
        self._call = _compiled(model) if compiled else model

    def forward(
        self, dense_BF: Tensor, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Returns columns_BC (float32; see :class:`Outputs`), and of the vectors that they were computed from emb_BFD,
        those that are made of rows of tables."""
        emb_BFD = self.fields(rows, masks, dense_BF)
        with torch.autocast(dense_BF.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits_BT = self._call(dense_BF, self._thinned(emb_BFD))
        if self._origin is not None:
            hint = "it returned the right shape for a few rows, but not for this batch"
            check_shape(f"{self._origin.title}: forward", self._origin, logits_BT, dense_BF.shape[0], hint)
        return self.outputs(logits_BT.float()), emb_BFD[:, : self.fields.of_rows]

    def _thinned(self, emb_BFD: Tensor) -> Tensor:
        return dropout(emb_BFD, self._dropout, self.training)


def _compiled(model: nn.Module) -> CompiledModel:
    from ziggurat.models.compiled import CompiledModel  # brings torch's compiler, which other runs need not load

    return CompiledModel(model)


class Recommender(nn.Module):
    """A module that computes the logits and other columns of a batch (columns_BC, see :class:`Outputs`).

    Args:
        lookup: maps ids to rows.
        part: maps rows to logits.
        called: the module to call in place of ``part``: ``part`` wrapped for several ranks; None for ``part`` itself.
    """

    def __init__(self, lookup: EmbeddingLookup, part: DensePart, called: nn.Module | None = None) -> None:
        super().__init__()
        self.lookup = lookup
        self.dense = part if called is None else called
        self._part = [part]  # in a list: no second registration of its parameters

    @property
    def part(self) -> DensePart:
        """The dense part itself, not wrapped for several ranks."""
        return self._part[0]

    @property
    def model(self) -> nn.Module:
        return self._part[0].model

    @property
    def outputs(self) -> Outputs:
        return self._part[0].outputs

    def forward(
        self,
        batch: Batch,
        started: StartedLookup | None = None,
        following: StartedLookup | None = None,
        *,
        trains_tables: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """Returns columns_BC (float32), and of the vectors that they were computed from emb_BFD, those of tables' rows.

        Args:
            batch: the batch to predict.
            started: the batch's lookup, if it was started before.
            following: the next batch's lookup, if started; its ids are sent as soon as this batch's rows have arrived.
            trains_tables: whether a backward pass reaches the tables; it would update them, even by gradients of 0.
        """
        rows = self.lookup.finish(started or self.lookup.start(batch))
        if following is not None:
            self.lookup.send_ids(following)
        by_feature = rows.by_feature
        if not trains_tables:
            by_feature = {name: each.detach() for name, each in by_feature.items()}
        return self.dense(batch.dense_BF, by_feature, rows.masks)

    def looked_up(self, batch: Batch) -> Callable[[], Tensor]:
        """Looks up the rows of a batch; the function that it returns predicts them (:meth:`predict`)."""
        rows = self.lookup.finish(self.lookup.start(batch))
        return lambda: self.predict(batch.dense_BF, rows)

    def predict(self, dense_BF: Tensor, rows: LookedUpRows) -> Tensor:
        """Returns columns_BC (float32) for rows that were looked up, without gradients.

        On the CPU the dense part computes :data:`CACHED_ROWS` rows at a time, as the activations of more would pass
        through main memory between any two operations. That does not change a row's result.

        Args:
            dense_BF: the dense features of the batch.
            rows: its rows of the tables, from ``lookup``.
        """
        size, step = len(dense_BF), CACHED_ROWS
        if dense_BF.device.type != "cpu" or self._part[0].compiled or size <= step:
            return self.dense(dense_BF, rows.by_feature, rows.masks)[0]
        parts: list[Tensor] = []
        for start in range(0, size, step):
            at = slice(start, start + step)
            by_feature = {name: each[at] for name, each in rows.by_feature.items()}
            parts.append(self.dense(dense_BF[at], by_feature, {name: each[at] for name, each in rows.masks.items()})[0])
        return torch.cat(parts)

    @property
    def is_shareable(self) -> bool:
        """Whether several threads may predict at once: every module of the dense part is the package's, none compiled.

        Those have no state that a prediction changes; modules from outside the package may.
        """
        part = self._part[0]
        return not part.compiled and all(getattr(module, "origin", None) is None for module in part.modules())

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """Returns, by name, all parameters that the dense optimizer trains; those of other hosts' towers are on
        ``meta`` and have no gradients here."""
        named = {f"model.{name}": parameter for name, parameter in self.model.named_parameters()}
        named.update(self.lookup.fields.named_parameters())
        named.update({f"outputs.{name}": parameter for name, parameter in self.outputs.named_parameters()})
        return named

    def dense_slices(self) -> list[TensorSlice]:
        """Returns the live dense parameters and buffers, which are what a checkpoint stores of the dense part; those of
        other hosts' towers are there."""
        return [
            TensorSlice.of_tensor(name, tensor) for name, tensor in self._dense_tensors().items() if not tensor.is_meta
        ]

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of all dense parameters and buffers by name, those of other hosts' towers too."""
        return {name: tuple(tensor.shape) for name, tensor in self._dense_tensors().items()}

    def _dense_tensors(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = dict(self.dense_parameters())
        named.update({f"model.{name}": buffer for name, buffer in self.model.named_buffers()})
        named.update(self.lookup.fields.named_buffers())
        named.update({f"outputs.{name}": buffer for name, buffer in self.outputs.named_buffers()})
        return named

    def tensor_slices(self) -> list[TensorSlice]:
        """Returns all live tensors that are used to predict: ``dense/NAME`` and ``tables/NAME``."""
        groups = {"dense": self.dense_slices(), "tables": self.lookup.tensor_slices()}
        return [
            replace(tensor_slice, name=f"{group}/{tensor_slice.name}", tensor=tensor_slice.tensor.detach())
            for group, tensor_slices in groups.items()
            for tensor_slice in tensor_slices
        ]

    def weights(self) -> dict[str, Tensor]:
        """Returns this rank's tensors of :meth:`tensor_slices`, by a key that is unique on the rank."""
        return {tensor_slice.key: tensor_slice.tensor for tensor_slice in self.tensor_slices()}


def assemble(
    experiment: Experiment,
    layout: Layout,
    plan: Plan,
    device: torch.device,
    row_ranks: Mapping[str, FrequencyRanks] = MappingProxyType({}),
    offload_folder: OffloadFolder | None = None,
    *,
    labels: Mapping[str, LabelFigures] = MappingProxyType({}),
    own_random: bool = False,
) -> Recommender:
    """Returns a freshly initialised recommender on ``device``, equal to the bit for a seed on any number of ranks.

    All ranks of the process group (:func:`~ziggurat.training.process_group.process_group`) must call it. It seeds
    torch's global random numbers, from which the weights are drawn; after that, each rank's own, those of dropout.

    Args:
        experiment: the config.
        layout: the layout of its tables.
        plan: the plan for the ranks of the process group.
        device: this rank's device.
        row_ranks: for each table whose rows the plan orders, the rank of each row by falling frequency.
        offload_folder: the folder for rows that the plan does not keep in memory.
        labels: figures of the labels in the training rows, at which predictions begin.
        own_random: whether to draw the same weights without torch's global random numbers, which a training in another
            thread may be using; for a recommender that is not trained.
    """
    training, world = experiment.training, World.current()
    seed = training.seed
    if not own_random:
        torch.manual_seed(seed)
    with OwnRandom(seed) if own_random else contextlib.nullcontext():
        towers = tower_transform(experiment.towers, experiment.parallel, layout, world, device, training.batch_size)
        lookup = EmbeddingLookup(
            layout, plan, device, seed, experiment.parallel, training.batch_size, row_ranks, offload_folder, towers
        )
        try:
            model = synchronise_batch_norms(experiment.build_model(layout).to(device))
            if training.activation_checkpointing:
                checkpoint_activations(model)
            run_upstream(model, towers, autocast=training.precision == "bf16")
            dropout = experiment.embeddings.dropout
            outputs = Outputs(experiment.tasks(layout.schema), bool(training.start_at_base_rate))
            outputs.start(labels)
            part = DensePart(
                lookup.fields,
                model,
                outputs.to(device),
                training.precision == "bf16",
                training.compile is True,
                dropout,
            )
            of_hosts = model.towers if isinstance(model, TowerModel) and model.upstream else nn.ModuleList()
            called = parallelise(part, experiment.parallel, world, device, of_hosts) if world.size > 1 else part
        except BaseException:
            lookup.close()
            raise
    if world.rank and not own_random:
        torch.manual_seed(seed + (world.rank << 32))
    return Recommender(lookup, part, called)

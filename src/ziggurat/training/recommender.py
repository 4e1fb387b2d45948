"""Lookup and model as one module, and how an experiment becomes one.

Shape legend: B rows, F features, D embedding width, T tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.core.batch import Batch
from ziggurat.core.plan import Plan
from ziggurat.core.row_order import FrequencyRanks
from ziggurat.embeddings.fields import Fields
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.lookup import EmbeddingLookup, StartedLookup
from ziggurat.embeddings.offload import OffloadFolder
from ziggurat.models.build import model_dims
from ziggurat.parallel.dense import checkpoint_activations, parallelise
from ziggurat.parallel.norms import synchronise_batch_norms
from ziggurat.parallel.tensor_slices import TensorSlice
from ziggurat.parallel.world import World
from ziggurat.training.experiment import Experiment


class DensePart(nn.Module):
    """From looked-up rows to logits: everything that the dense optimizer trains."""

    def __init__(self, fields: Fields, model: nn.Module, autocast: bool, compiled: bool, dropout: float) -> None:
        super().__init__()
        self.fields, self.model = fields, model
        self._dropout, self._autocast = dropout, autocast
        self._call = torch.compile(model) if compiled else model

    def forward(
        self, dense_BF: Tensor, rows: Mapping[str, Tensor], masks: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """logits_BT (float32) and the vectors emb_BFD that they were made from."""
        emb_BFD = self.fields(rows, masks)
        with torch.autocast(dense_BF.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits_BT = self._call(dense_BF, self._thinned(emb_BFD))
        return logits_BT.float(), emb_BFD

    def _thinned(self, emb_BFD: Tensor) -> Tensor:
        return F.dropout(emb_BFD, self._dropout, self.training) if self._dropout else emb_BFD


class Recommender(nn.Module):
    """logits_BT of a batch.

    Args:
        lookup: ids to rows.
        part: rows to logits.
        called: ``part``, or what spreads it over the ranks.
    """

    def __init__(self, lookup: EmbeddingLookup, part: DensePart, called: nn.Module | None = None) -> None:
        super().__init__()
        self.lookup = lookup
        self.dense = part if called is None else called
        self._part = [part]  # in a list: no second registration of its parameters

    @property
    def model(self) -> nn.Module:
        return self._part[0].model

    def forward(
        self, batch: Batch, started: StartedLookup | None = None, following: StartedLookup | None = None
    ) -> tuple[Tensor, Tensor]:
        """logits_BT (float32) and the vectors emb_BFD that they were made from.

        Args:
            batch: what to predict.
            started: its lookup, where it was begun before.
            following: the next batch's, where that is begun: its ids are sent on as soon as this batch's rows are here.
        """
        rows = self.lookup.finish(started or self.lookup.start(batch))
        if following is not None:
            self.lookup.send_ids(following)
        return self.dense(batch.dense_BF, rows.by_feature, rows.masks)

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """Everything that is trained by the dense optimizer, by name."""
        named = {f"model.{name}": parameter for name, parameter in self.model.named_parameters()}
        named.update(self.lookup.fields.named_parameters())
        return named

    def dense_slices(self) -> list[TensorSlice]:
        """The dense parameters and buffers, live, by name: what a checkpoint keeps of the dense part."""
        named: dict[str, Tensor] = dict(self.dense_parameters())
        named.update({f"model.{name}": buffer for name, buffer in self.model.named_buffers()})
        named.update(self.lookup.fields.named_buffers())
        return [TensorSlice.of_tensor(name, tensor) for name, tensor in named.items()]

    def tensor_slices(self) -> list[TensorSlice]:
        """Everything that is used to predict, live: ``dense/NAME`` and ``tables/NAME``."""
        groups = {"dense": self.dense_slices(), "tables": self.lookup.tensor_slices()}
        return [
            replace(tensor_slice, name=f"{group}/{tensor_slice.name}", tensor=tensor_slice.tensor.detach())
            for group, tensor_slices in groups.items()
            for tensor_slice in tensor_slices
        ]

    def weights(self) -> dict[str, Tensor]:
        """What of :meth:`pieces` this rank holds, by a name that is unique here."""
        return {tensor_slice.key: tensor_slice.tensor for tensor_slice in self.tensor_slices()}


def assemble(
    experiment: Experiment,
    layout: Layout,
    plan: Plan,
    device: torch.device,
    row_ranks: Mapping[str, FrequencyRanks] = MappingProxyType({}),
    beyond: OffloadFolder | None = None,
) -> Recommender:
    """A freshly initialised recommender, on ``device``; the same bits for the same seed, on any number of ranks.

    Needs a process group (:func:`~ziggurat.training.process_group.process_group`), whose ranks all call it. Each rank's
    own randomness, that of dropout, starts behind it.

    Args:
        experiment: the config.
        layout: of its tables.
        plan: for as many ranks as there are.
        device: this rank's.
        row_ranks: of tables whose rows the plan orders, the rank of each row by falling frequency.
        beyond: where the rows lie that the plan gives no memory.
    """
    training, world = experiment.training, World.current()
    seed = training.seed
    torch.manual_seed(seed)
    lookup = EmbeddingLookup(layout, plan, device, seed, experiment.parallel, training.batch_size, row_ranks, beyond)
    try:
        model = synchronise_batch_norms(experiment.model.build(model_dims(layout)).to(device))
        if training.activation_checkpointing:
            checkpoint_activations(model)
        dropout = experiment.embeddings.dropout
        part = DensePart(lookup.fields, model, training.precision == "bf16", training.compile, dropout)
        called = parallelise(part, experiment.parallel, world, device) if world.size > 1 else part
    except BaseException:
        lookup.close()
        raise
    if world.rank:
        torch.manual_seed(seed + (world.rank << 32))
    return Recommender(lookup, part, called)

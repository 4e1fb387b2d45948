"""Lookup and model as one module, and how an experiment becomes one.

Shape legend: B rows, F features, D embedding width, T tasks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ziggurat.core.batch import Batch
from ziggurat.core.plan import Plan
from ziggurat.core.schema import Schema
from ziggurat.embeddings.layout import Layout
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.models.build import build_model, model_dims
from ziggurat.training.experiment import Experiment


class Recommender(nn.Module):
    """logits_BT of a batch."""

    def __init__(
        self, lookup: EmbeddingLookup, model: nn.Module, autocast: bool, compiled: bool, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.lookup = lookup
        self.model = model
        self._dropout = dropout
        self._autocast = autocast
        self._call = torch.compile(model) if compiled else model

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """logits_BT (float32) and the vectors emb_BFD that they were made from."""
        emb_BFD = self.lookup(batch)
        with torch.autocast(batch.dense_BF.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits_BT = self._call(batch.dense_BF, self._thinned(emb_BFD))
        return logits_BT.float(), emb_BFD

    def _thinned(self, emb_BFD: Tensor) -> Tensor:
        return F.dropout(emb_BFD, self._dropout, self.training) if self._dropout else emb_BFD

    def dense_parameters(self) -> dict[str, nn.Parameter]:
        """Everything that is trained by the dense optimizer, by name."""
        named = {f"model.{name}": parameter for name, parameter in self.model.named_parameters()}
        named.update(self.lookup.fields.named_parameters())
        return named

    def dense_tensors(self) -> dict[str, Tensor]:
        """The dense parameters and buffers, live, by name: what a checkpoint keeps of the dense part."""
        named: dict[str, Tensor] = dict(self.dense_parameters())
        named.update({f"model.{name}": buffer for name, buffer in self.model.named_buffers()})
        named.update(self.lookup.fields.named_buffers())
        return named

    def weights(self) -> dict[str, Tensor]:
        """Everything that is used to predict, live: ``dense/NAME`` and ``tables/NAME``."""
        groups = {"dense": self.dense_tensors(), "tables": self.lookup.weights()}
        return {f"{group}/{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}


@dataclass(frozen=True, slots=True)
class Assembled:
    """A recommender with what it was assembled from."""

    recommender: Recommender
    layout: Layout
    plan: Plan


def assemble(experiment: Experiment, schema: Schema, device: torch.device) -> Assembled:
    """A freshly initialised recommender, on ``device``; the same bits for the same seed.

    Needs a process group (:func:`~ziggurat.training.engine.process_group`).
    """
    seed, layout = experiment.training.seed, experiment.layout(schema)
    torch.manual_seed(seed)
    plan = Plan.single_device(table.name for table in layout.tables)
    lookup = EmbeddingLookup(layout, plan, device, seed)
    model = build_model(experiment.model, model_dims(layout)).to(device)
    training = experiment.training
    dropout = experiment.embeddings.dropout
    recommender = Recommender(lookup, model, training.precision == "bf16", training.compile, dropout)
    return Assembled(recommender, layout, plan)

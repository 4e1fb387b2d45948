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
from ziggurat.core.tables import Pooling, TableSpec
from ziggurat.embeddings.config import table_specs
from ziggurat.embeddings.lookup import EmbeddingLookup
from ziggurat.features.config import BagFeature, SequenceFeature
from ziggurat.models.build import ModelDims, build_model
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
        named.update({f"projections.{name}": p for name, p in self.lookup.projections.named_parameters()})
        return named

    def dense_tensors(self) -> dict[str, Tensor]:
        """The dense parameters and the model's buffers, live, by name: what a checkpoint keeps of the dense part."""
        named: dict[str, Tensor] = dict(self.dense_parameters())
        named.update({f"model.{name}": buffer for name, buffer in self.model.named_buffers()})
        return named


@dataclass(frozen=True, slots=True)
class Assembled:
    """A recommender with what it was assembled from."""

    recommender: Recommender
    tables: list[TableSpec]
    plan: Plan


def tables_of(experiment: Experiment, schema: Schema) -> list[TableSpec]:
    """The embedding tables that the experiment's model needs for this schema."""
    return table_specs(experiment.embeddings, schema, poolings(experiment), model_width(experiment))


def model_width(experiment: Experiment) -> int:
    """D: what the config asks for, or what the model insists on."""
    return experiment.model.embedding_dim(experiment.embeddings.dim, tasks=len(experiment.data.labels))


def poolings(experiment: Experiment) -> dict[str, Pooling]:
    """Bag or sequence feature -> its pooling."""
    return {f.name: f.pooling for f in experiment.features if isinstance(f, BagFeature | SequenceFeature)}


def assemble(experiment: Experiment, schema: Schema, device: torch.device) -> Assembled:
    """A freshly initialised recommender, on ``device``; the same bits for the same seed.

    Needs a process group (:func:`~ziggurat.training.engine.process_group`).
    """
    seed, width = experiment.training.seed, model_width(experiment)
    torch.manual_seed(seed)
    tables = tables_of(experiment, schema)
    plan = Plan.single_device(table.name for table in tables)
    lookup = EmbeddingLookup(schema, tables, plan, device, width, seed)
    dims = ModelDims(dense=len(schema.dense), features=lookup.features, dim=width, tasks=len(schema.labels))
    model = build_model(experiment.model, dims).to(device)
    training = experiment.training
    dropout = experiment.embeddings.dropout
    recommender = Recommender(lookup, model, training.precision == "bf16", training.compile, dropout)
    return Assembled(recommender, tables, plan)

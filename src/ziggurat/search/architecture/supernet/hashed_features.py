"""The features, tables and batches of a super-net: each table also stands there with fewer rows, by hashed ids.

A feature ``user_id`` whose table may keep a tenth of its rows is looked up twice: as ``user_id`` and as
``user_id@0_1``, whose ids are the hash encoder's of the first ones. The model that is found hashes the raw values, so
other ids share rows, and equally many.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torchrec.sparse.jagged_tensor import JaggedTensor, KeyedJaggedTensor

from ziggurat.core.batch import Batch
from ziggurat.core.hashing import hash_integers, to_buckets
from ziggurat.core.schema import Schema
from ziggurat.features.encoders.encoder import MISSING_ROW
from ziggurat.search.architecture.space.table_choices import SearchedTable
from ziggurat.training.experiment import Experiment


def hashed_name(name: str, share: float) -> str:
    """Returns the name of a feature or table that keeps a share of its rows; torch allows no dots in names."""
    return name if share == 1.0 else f"{name}@" + f"{share:g}".replace(".", "_")


def extended_schema(schema: Schema, tables: list[SearchedTable]) -> Schema:
    """Returns the schema with the features and tables that hashing adds."""
    added: dict[str, list[str]] = {"categorical": [], "bags": []}
    table_of, rows = dict(schema.tables), dict(schema.rows)
    for table in tables:
        for share, count in zip(table.shares, table.hashed_rows, strict=True):
            rows[hashed_name(table.name, share)] = count
            for feature in table.features if share != 1.0 else ():
                name = hashed_name(feature, share)
                table_of[name] = hashed_name(table.name, share)
                added["categorical" if feature in schema.categorical else "bags"].append(name)
        if 1.0 not in table.shares:
            rows[table.name] = 1  # its ids are not looked up
    return replace(
        schema,
        categorical=(*schema.categorical, *added["categorical"]),
        bags=(*schema.bags, *added["bags"]),
        tables=table_of,
        rows=rows,
    )


def extended_experiment(experiment: Experiment, tables: list[SearchedTable]) -> Experiment:
    """Returns the experiment with the added features, whose other settings are those of the features that they copy."""
    copies = [
        each.model_copy(update={"name": hashed_name(each.name, share), "table": hashed_name(table.name, share)})
        for table in tables
        for share in table.shares
        if share != 1.0
        for each in experiment.features
        if each.name in table.features
    ]
    settings = dict(experiment.embeddings.tables)
    for table in tables:
        if table.name in settings:
            settings.update({hashed_name(table.name, share): settings[table.name] for share in table.shares})
    embeddings = experiment.embeddings.model_copy(update={"tables": settings})
    return experiment.model_copy(update={"features": (*experiment.features, *copies), "embeddings": embeddings})


class HashedFeatures(nn.Module):
    """Adds the hashed features to batches.

    Args:
        schema: the schema of the data.
        tables: the tables whose sizes are decided.
    """

    def __init__(self, schema: Schema, tables: list[SearchedTable]) -> None:
        super().__init__()
        self._extended = extended_schema(schema, tables)
        self._hashed: dict[str, tuple[str, Tensor]] = {}
        self._unused = {name for table in tables if 1.0 not in table.shares for name in table.features}
        for table in tables:
            for share, count in zip(table.shares, table.hashed_rows, strict=True):
                if share == 1.0:
                    continue
                ids = hashed_ids(table.rows, count)
                for feature in table.features:
                    self._hashed[hashed_name(feature, share)] = (feature, ids)

    def forward(self, batch: Batch) -> Batch:
        """Returns the batch with the added features; itself if there are none."""
        if not self._hashed or batch.bags is None:
            return batch
        own = batch.bags.to_dict()
        parts: list[JaggedTensor] = []
        for key in self._extended.pooled:
            if key not in self._hashed:
                part = own[key]
                if key in self._unused:  # of a table of one row
                    missing = torch.full_like(part.values(), MISSING_ROW)
                    part = JaggedTensor(values=missing, lengths=part.lengths())
                parts.append(part)
                continue
            feature, ids = self._hashed[key]
            source = own[feature]
            parts.append(JaggedTensor(values=ids.to(source.values().device)[source.values()], lengths=source.lengths()))
        bags = KeyedJaggedTensor(
            keys=list(self._extended.pooled),
            values=torch.cat([part.values() for part in parts]),
            lengths=torch.cat([part.lengths() for part in parts]),
        )
        return replace(batch, bags=bags)


def hashed_ids(rows: int, hashed_rows: int) -> Tensor:
    """Returns id -> id in a table of fewer rows, int64 (rows,), by the formula of the hash encoder; 0 stays 0."""
    ids = 1 + to_buckets(hash_integers(np.arange(rows)), hashed_rows - 1)
    ids[MISSING_ROW] = MISSING_ROW
    return torch.from_numpy(ids)

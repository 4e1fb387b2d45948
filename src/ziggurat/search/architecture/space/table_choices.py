"""The sizes of embedding tables as decisions: floats per vector, and rows by hashing.

A table of fewer rows has the hash encoder of ``features/encoders/hashed.py``, so that ids share rows; a table of
narrower vectors is projected to the width of the model, as ``embeddings.tables`` does it. What is found is therefore an
ordinary config.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field, model_validator
from torch import Tensor

from ziggurat.core.config import Config
from ziggurat.embeddings.config import Dim, TableConfig
from ziggurat.embeddings.layout import Layout
from ziggurat.features.config import BagFeature, CategoricalFeature, FeatureConfig
from ziggurat.features.encoders.hashed import HashConfig
from ziggurat.features.encoders.vocabulary import VocabularyConfig
from ziggurat.interactions.linear import Linear
from ziggurat.search.architecture.space.cost import PartCost
from ziggurat.search.architecture.space.decision import Decision, Probabilities
from ziggurat.training.experiment import Experiment

FLOAT_BYTES = 4
_LEAST_ROWS = 2


class TableChoices(Config):
    """The sizes that each table may have."""

    dims: tuple[Dim, ...] | None = None
    """Floats per vector; the greatest is the width that the model gets. Default: a quarter and a half of
    ``embeddings.dim``, and all of it."""

    rows: Annotated[tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(min_length=1)] = (1.0, 0.1, 0.01, 0.001)
    """Shares of the rows that the config gives a table. Below 1, ids are hashed to so many rows."""

    least_rows: Annotated[int, Field(ge=2)] = 1000
    """Tables of fewer rows keep them all."""

    @model_validator(mode="after")
    def _each_once(self) -> TableChoices:
        for name, values in (("dims", self.dims or ()), ("rows", self.rows)):
            if len(set(values)) < len(values):
                raise ValueError(f"{name} is {list(values)}; list each value once")
        return self

    def dims_of(self, dim: int) -> tuple[int, ...]:
        """Returns the choices of floats per vector for a config with ``embeddings.dim: DIM``."""
        if self.dims is not None:
            return tuple(sorted(self.dims))
        return tuple(sorted({max(4, dim // part // 4 * 4) for part in (4, 2, 1)}))


@dataclass(frozen=True, slots=True)
class SearchedTable:
    """A table whose sizes are decided.

    Attributes:
        name: the table.
        rows: its rows in the config.
        features: the features that look it up.
        shares: the choices of its rows; only 1.0 if it keeps them.
    """

    name: str
    rows: int
    features: tuple[str, ...]
    shares: tuple[float, ...]

    @property
    def hashed_rows(self) -> tuple[int, ...]:
        """The rows of each choice."""
        return tuple(rows_of(self.rows, share) for share in self.shares)


def rows_of(rows: int, share: float) -> int:
    """Returns the rows of a table that keeps a share of them."""
    return rows if share == 1.0 else max(_LEAST_ROWS, round(rows * share))


class TableSpace:
    """The decisions of all tables: ``table.NAME.dim`` and ``table.NAME.rows``.

    Tables that keep their sizes are those of sequences that are looked up by position and of their targets, of groups,
    with several vectors a row, or with a ``dim`` of their own in the config. Rows stay where a feature is not
    categorical or a bag, or has another encoder than a vocabulary.

    Args:
        choices: the sizes there may be.
        experiment: the config.
        layout: its layout.

    Attributes:
        dims: the choices of floats per vector, ascending; the last is the width of the model.
        tables: the tables whose sizes are decided.
    """

    def __init__(self, choices: TableChoices, experiment: Experiment, layout: Layout) -> None:
        self.dims = choices.dims_of(experiment.embeddings.dim)
        self.width = self.dims[-1]
        kept = {name for name, own in experiment.embeddings.tables.items() if own.dim is not None}
        table_of = layout.table_of
        kept |= {table_of[feature].name for feature in layout.positions}
        targets = (how.encoder.target_feature for how in layout.positions.values())
        kept |= {table_of[target].name for target in targets if target is not None}
        kept |= {table_of[f].name for source in layout.sources if source.group is not None for f in source.features}
        kept |= {spec.name for spec in layout.tables if spec.vectors > 1}
        configs = {each.name: each for each in experiment.features}
        self.tables: list[SearchedTable] = []
        for spec in layout.tables:
            if spec.name in kept:
                continue
            hashable = spec.rows >= choices.least_rows and all(_is_hashable(configs.get(f)) for f in spec.features)
            shares = tuple(sorted(choices.rows, reverse=True)) if hashable else (1.0,)
            self.tables.append(SearchedTable(spec.name, spec.rows, spec.features, shares))
        self._kept_bytes = sum(spec.rows * spec.dim * FLOAT_BYTES for spec in layout.tables if spec.name in kept)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        found: list[Decision] = []
        for table in self.tables:
            found += [
                Decision(f"table.{table.name}.dim", self.dims, len(self.dims) - 1),
                Decision(f"table.{table.name}.rows", table.shares, 0),
            ]
        return tuple(found)

    def expected_bytes(self, probabilities: Probabilities) -> Tensor:
        """Returns the mean bytes of all tables; optimizer states are not counted."""
        total = torch.tensor(float(self._kept_bytes), dtype=torch.float64)
        for table in self.tables:
            dims = (probabilities[f"table.{table.name}.dim"] * _numbers(self.dims)).sum()
            rows = (probabilities[f"table.{table.name}.rows"] * _numbers(table.hashed_rows)).sum()
            total = total + FLOAT_BYTES * dims * rows
        return total

    def expected_cost(self, probabilities: Probabilities, cost: PartCost) -> Tensor:
        """Returns the mean cost per row of the projections of narrow vectors to the width of the model."""
        total = torch.zeros((), dtype=torch.float64)
        costs = [
            0.0
            if dim == self.width
            else cost.of(f"projection {dim} {self.width}", lambda d=dim: Linear(d, self.width, bias=False), (dim,))
            for dim in self.dims
        ]
        for table in self.tables:
            total = total + len(table.features) * (probabilities[f"table.{table.name}.dim"] * _numbers(costs)).sum()
        return total

    def applied(self, experiment: Experiment, values: dict[str, Any]) -> Experiment:
        """Returns the experiment with the tables of an architecture.

        Args:
            experiment: the config that the search began with.
            values: name of a decision -> the value that was chosen.
        """
        tables = dict(experiment.embeddings.tables)
        encoders: dict[str, HashConfig] = {}
        for table in self.tables:
            dim, share = values[f"table.{table.name}.dim"], values[f"table.{table.name}.rows"]
            if dim != self.width:
                tables[table.name] = tables.get(table.name, TableConfig()).model_copy(update={"dim": dim})
            if share != 1.0:
                encoder = HashConfig(rows=rows_of(table.rows, share))
                encoders.update(dict.fromkeys(table.features, encoder))
        features = tuple(
            each.model_copy(update={"encoder": encoders[each.name]}) if each.name in encoders else each
            for each in experiment.features
        )
        embeddings = experiment.embeddings.model_copy(update={"dim": self.width, "tables": tables})
        return experiment.model_copy(update={"embeddings": embeddings, "features": features})


def _is_hashable(feature: FeatureConfig | None) -> bool:
    if not isinstance(feature, CategoricalFeature | BagFeature):
        return False
    return feature.encoder is None or isinstance(feature.encoder, VocabularyConfig)


def _numbers(values: Iterable[float]) -> Tensor:
    return torch.tensor([float(each) for each in values], dtype=torch.float64)

"""The whole space of a search: the model's decisions and those of the tables, and the costs that limits are set for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from ziggurat.core.config import parse_config
from ziggurat.core.schema import Schema
from ziggurat.embeddings.fields import Fields, total_flops
from ziggurat.embeddings.layout import Layout
from ziggurat.models.build import model_dims
from ziggurat.search.architecture.space.cost import FlopsCost, PartCost, Recorder
from ziggurat.search.architecture.space.decision import Architecture, Decision, Probabilities, certain, chosen
from ziggurat.search.architecture.space.own_mlp import with_own_regularisation
from ziggurat.search.architecture.space.search_space import SpaceSettings
from ziggurat.search.architecture.space.table_choices import FLOAT_BYTES, TableChoices, TableSpace
from ziggurat.training.experiment import Experiment

CostName = Literal["flops", "bytes", "milliseconds"]
"""FLOPs of one row, forward; bytes of all tables; milliseconds of one row in the dense part, forward and backward."""


class WholeSpace:
    """All decisions of a search.

    Args:
        settings: the space of the model.
        choices: the sizes that tables may have.
        experiment: the config that the search begins with.
        schema: the schema of its prepared data.
        latency: measured milliseconds of parts; None if milliseconds are not asked for.

    Attributes:
        layout: the layout of the config with the width that the tables' choices give the model.

    Raises:
        ConfigError: a choice cannot work with the sizes of these data.
    """

    def __init__(
        self,
        settings: SpaceSettings,
        choices: TableChoices,
        experiment: Experiment,
        schema: Schema,
        latency: PartCost | None = None,
    ) -> None:
        width = choices.dims_of(experiment.embeddings.dim)[-1]
        self.own = experiment
        self.experiment = experiment.model_copy(
            update={"embeddings": experiment.embeddings.model_copy(update={"dim": width})}
        )
        self.schema = schema
        self.layout = self.experiment.layout(schema)
        self.tables = TableSpace(choices, self.experiment, self.layout)
        settings = with_own_regularisation(settings, experiment.model)
        self.model = settings.build_checked(model_dims(self.layout, self.experiment.tasks(schema)))
        self._flops, self._latency = FlopsCost(), latency
        self._fields_flops = _flops_of_fields(self.layout)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        return (*self.model.decisions, *self.tables.decisions)

    def expected_costs(self, probabilities: Probabilities) -> dict[CostName, Tensor]:
        """Returns the mean of each cost over architectures that are drawn with these probabilities."""
        found: dict[CostName, Tensor] = {
            "flops": self._dense(probabilities, self._flops) + self._fields_flops,
            "bytes": self.tables.expected_bytes(probabilities),
        }
        if self._latency is not None:
            found["milliseconds"] = self._dense(probabilities, self._latency)
        return found

    def costs(self, architecture: Architecture) -> dict[CostName, float]:
        """Returns the costs of an architecture."""
        found = self.expected_costs(certain(self.decisions, architecture))
        return {name: float(value) for name, value in found.items()}

    def own_costs(self) -> dict[CostName, float]:
        """Returns FLOPs and bytes of the config as it is."""
        layout = self.own.layout(self.schema)
        with torch.device("meta"):
            flops = self.own.build_model(layout).flops()
        tables = sum(spec.rows * spec.dim * FLOAT_BYTES for spec in layout.tables)
        return {"flops": float(flops + _flops_of_fields(layout)), "bytes": float(tables)}

    def decoded(self, architecture: Architecture) -> Experiment:
        """Returns the config of an architecture: it trains as any other.

        Raises:
            ConfigError: the space made a config that is not valid.
        """
        values: dict[str, Any] = chosen(self.decisions, architecture)
        model = self.model.model(values)
        experiment = self.tables.applied(self.experiment, values).model_copy(update={"model": model})
        return parse_config(Experiment, experiment.model_dump(mode="json"), "architecture")

    def parts(self) -> Recorder:
        """Returns every part that an architecture may have, to be measured."""
        uniform = {
            each.name: torch.full((len(each.choices),), 1 / len(each.choices), dtype=torch.float64)
            for each in self.decisions
        }
        recorder = Recorder()
        self._dense(uniform, recorder)
        return recorder

    def _dense(self, probabilities: Probabilities, cost: PartCost) -> Tensor:
        return self.model.expected_cost(probabilities, cost) + self.tables.expected_cost(probabilities, cost)


def _flops_of_fields(layout: Layout) -> int:
    with torch.device("meta"):
        return total_flops(Fields(layout).costs())


def described(values: Mapping[str, Any]) -> str:
    """Returns an architecture in one line."""
    return ", ".join(f"{name} {value}" for name, value in values.items())

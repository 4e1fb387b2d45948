"""Hand-made rules to compare planners with: whole tables, sorted by one measure, each placed on the device with the
least sum of it.

The measures are those that AutoShard and DreamShard are compared with (arXiv 2208.06399, 2210.02023): bytes; dim; dim
times mean pooling; that times the logarithm of the rows. ``lpt`` and ``ldm`` balance the cost network's predictions for
single tables, greedily (Graham 1969) and by largest differencing (Karmarkar and Karp 1982). ``random`` places each
table on a random device with enough memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log10
from pathlib import Path
from typing import Literal, Self, get_args

import numpy as np

from ziggurat.core.plan import Plan
from ziggurat.core.progress import Progress
from ziggurat.planning.autoshard.costs import LearnedCosts
from ziggurat.planning.autoshard.learned import learned_costs
from ziggurat.planning.balance import BalanceProblem, largest_differencing, longest_first, no_capacity_error
from ziggurat.planning.contract import Planner, PlannerSettings, TimeParts
from ziggurat.planning.placement import Item, Loads, place_tables
from ziggurat.planning.problem import Problem
from ziggurat.planning.rules import Rules

Measure = Literal["random", "size", "dim", "lookup", "size_lookup", "lpt", "ldm"]


class BaselinePlanner(Planner):
    """A planner by one of the rules in the module's docstring.

    Args:
        config: the settings.
        costs: predicts the cost of a single table; None if the measure does not need it.
    """

    class Config(PlannerSettings):
        """A rule to compare planners with: whole tables sorted by one measure, none replicated or split for speed."""

        name: Literal["baseline"] = "baseline"

        by: Measure = "lookup"
        """size: bytes; dim; lookup: dim times mean pooling; size_lookup: that times log10 of the rows; lpt and ldm:
        predicted costs, greedily and by largest differencing; random: any device with enough memory."""
        learned: Path | None = None
        """Folder with a cost network of your own, for lpt and ldm; default: the one that comes with ziggurat."""
        seed: int = 0
        """Seed of random."""

        @property
        def needs_learned_costs(self) -> bool:
            return self.by in ("lpt", "ldm")

        @property
        def learned_folder(self) -> Path | None:
            return self.learned

        def with_learned(self, folder: Path | None) -> Self:
            return self.model_copy(update={"learned": folder})

        @property
        def label(self) -> str:
            return f"by {self.by}"

        @classmethod
        def variants(cls) -> tuple[PlannerSettings, ...]:
            return tuple(cls(by=measure) for measure in get_args(Measure))

        def build(self, time_parts: TimeParts | None = None, progress: Progress | None = None) -> BaselinePlanner:
            del time_parts, progress
            return BaselinePlanner(self, learned_costs(self.learned) if self.needs_learned_costs else None)

    def __init__(self, config: Config, costs: LearnedCosts | None) -> None:
        assert (costs is not None) == config.needs_learned_costs
        self.config, self.costs = config, costs
        self.rules = Rules(Rules.Config())

    def plan(self, problem: Problem) -> Plan:
        """See :class:`~ziggurat.planning.contract.Planner`.

        Tables without a fused kernel are replicated. If memory is short, the largest tables are split by rows, as by
        :class:`~ziggurat.planning.rules.Rules`.

        Raises:
            ConfigError: the learned costs are of another kind of device.
        """
        if self.costs is not None:
            self.costs.check_kind(problem.topology.kind)
        whole = self.rules.unsplit(problem)
        found = self.rules.place_within_memory(
            problem, whole, lambda splits: place_tables(problem, splits, self._assign)
        )
        return replace(found, notes=(f"baseline: whole tables by {self.config.by}",))

    def _assign(self, problem: Problem, plan: Plan, items: Sequence[Item], loads: Loads) -> Sequence[int]:
        balancing = BalanceProblem(
            costs=self._measures(problem, items),
            sizes=[item.cost.kept_bytes for item in items],
            capacities=loads.free,
            names=[item.name for item in items],
        )
        match self.config.by:
            case "random":
                return _at_random(balancing, self.config.seed)
            case "ldm":
                return (largest_differencing(balancing) or longest_first(balancing)).bins
            case _:
                return longest_first(balancing).bins

    def _measures(self, problem: Problem, items: Sequence[Item]) -> list[float]:
        if self.costs is not None:
            return self.costs.item_seconds(problem, items)
        return [self._measure(problem, item) for item in items]

    def _measure(self, problem: Problem, item: Item) -> float:
        rows, columns = item.shard.rows.size, item.shard.columns.size
        lookup = columns * problem.usages[item.table.name].ids_per_row
        match self.config.by:
            case "dim":
                return columns
            case "lookup":
                return lookup
            case "size_lookup":
                return lookup * log10(max(rows, 1))
            case _:
                return item.cost.weight_bytes


def _at_random(balancing: BalanceProblem, seed: int) -> list[int]:
    """Assigns each item to a random device with enough memory, in random order; if that fails, by falling size.

    Raises:
        NoFeasiblePlan: an item fits on no device by falling size either; the message names it.
    """
    draw = np.random.default_rng(seed)
    stuck = 0
    for order in (draw.permutation(len(balancing.sizes)), np.argsort(-np.asarray(balancing.sizes), kind="stable")):
        free, bins = np.array(balancing.capacities), [0] * len(balancing.sizes)
        for item in order.tolist():
            fitting = np.flatnonzero(free >= balancing.sizes[item])
            if not len(fitting):
                stuck = item
                break
            bins[item] = int(draw.choice(fitting))
            free[bins[item]] -= balancing.sizes[item]
        else:
            return bins
    raise no_capacity_error(balancing, stuck)

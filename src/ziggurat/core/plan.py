"""Which shard of which table lives on which rank. Made by a planner, applied by ``embeddings``, saved with the run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ziggurat.core.errors import ConfigError

PLAN_VERSION = 1

Sharding = Literal["table_wise"]
"""The ways to split a table that ``embeddings`` can apply today."""


@dataclass(frozen=True, slots=True)
class Placement:
    """How one table is split and who owns its shards (global ranks, in shard order)."""

    sharding: Sharding
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Table name -> placement, for a fixed world size."""

    world_size: int
    placements: dict[str, Placement]

    @classmethod
    def single_device(cls, tables: Iterable[str]) -> Plan:
        """Every table whole on rank 0 of a world of one."""
        return cls(1, {table: Placement("table_wise", (0,)) for table in tables})

    def to_json(self) -> dict[str, Any]:
        return {
            "version": PLAN_VERSION,
            "world_size": self.world_size,
            "placements": {k: asdict(v) for k, v in self.placements.items()},
        }

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Plan:
        """The plan that :meth:`to_json` wrote.

        Raises:
            ConfigError: a version this ziggurat does not know.
        """
        if values.get("version") != PLAN_VERSION:
            raise ConfigError(
                f"plan version {values.get('version')!r} is not {PLAN_VERSION}", "make the plan anew with this ziggurat"
            )
        placements = {
            name: Placement(item["sharding"], tuple(item["ranks"])) for name, item in values["placements"].items()
        }
        return cls(int(values["world_size"]), placements)

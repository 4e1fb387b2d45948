"""The ``towers`` section of an experiment: which features are together, and what compresses their embeddings."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Annotated, Literal

import pydantic

from ziggurat.core.config import Config
from ziggurat.core.errors import ConfigError, nearest
from ziggurat.core.parts import PartConfig
from ziggurat.towers.modules.dcn import DCNTower
from ziggurat.towers.modules.dlrm import DLRMTower
from ziggurat.towers.modules.wukong import WukongTower

Units = Sequence[Sequence[str]]
"""Features that cannot be divided: those of one table, or of one group. Every feature with a table is in one unit."""

Towers = tuple[tuple[str, ...], ...]
"""The features of each tower, in the order of the schema."""


class Given(Config):
    """The features of each tower, written out; ``ziggurat towers`` writes one that it learned."""

    name: Literal["given"] = "given"

    towers: tuple[tuple[str, ...], ...] = pydantic.Field(min_length=1)
    """The features of each tower; every feature that has a table is in exactly one."""

    def resolve(self, units: Units) -> Towers:
        """Returns the features of each tower, those of a tower in the order of ``units``.

        Raises:
            ConfigError: a feature does not exist, has no table, is named twice or not at all, or is in another tower
                than one that shares its table; the message names it.
        """
        known = [feature for unit in units for feature in unit]
        tower_of: dict[str, int] = {}
        for number, tower in enumerate(self.towers):
            key = f"towers.partition.towers.{number}"
            if not tower:
                raise ConfigError(f"{key}: names no feature", "leave the tower out, or name a feature")
            for feature in tower:
                if feature not in known:
                    close = nearest(feature, known)
                    hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(known) or 'none'}"
                    raise ConfigError(f"{key}: {feature!r} is no feature with a table; {hint}")
                if feature in tower_of:
                    raise ConfigError(
                        f"{key}: {feature!r} is in tower {tower_of[feature]} already", "name each feature once"
                    )
                tower_of[feature] = number
        missing = [feature for feature in known if feature not in tower_of]
        if missing:
            raise ConfigError(
                f"towers.partition.towers: {missing[0]!r} is in no tower"
                + (f", nor are {len(missing) - 1} more" if len(missing) > 1 else ""),
                "every feature with a table is in exactly one tower: add it to one",
            )
        for unit in units:
            for feature in unit[1:]:
                if tower_of[feature] != tower_of[unit[0]]:
                    raise ConfigError(
                        f"towers.partition.towers: {feature!r} is in tower {tower_of[feature]}, {unit[0]!r} in tower "
                        f"{tower_of[unit[0]]}, and they share a table or a group",
                        "put both into one tower: a table stays on the host of its tower",
                    )
        return _of_units(units, [tower_of[unit[0]] for unit in units], len(self.towers))


class _Counted(Config):
    """A partition into a number of towers."""

    towers: int = pydantic.Field(ge=1)
    """Number of towers."""

    def check_count(self, units: Units) -> None:
        """Raises if there are more towers than features to put into them."""
        if self.towers > len(units):
            features = sum(map(len, units))
            shared = f", which have {len(units)} tables or groups" if len(units) < features else ""
            raise ConfigError(
                f"towers.partition.towers: received {self.towers}, there are {features} features with tables{shared}",
                f"set it to {max(len(units), 1)} or less" if units else "leave the section towers out",
            )


class Strided(_Counted):
    """Feature i is in tower i modulo T; features that share a table count as one."""

    name: Literal["strided"] = "strided"

    def resolve(self, units: Units) -> Towers:
        """Returns the features of each tower.

        Raises:
            ConfigError: there are more towers than features.
        """
        self.check_count(units)
        return _of_units(units, [number % self.towers for number in range(len(units))], self.towers)


class Random(_Counted):
    """Features in random order, as many in each tower; features that share a table count as one."""

    name: Literal["random"] = "random"

    seed: int = 0
    """Seed of the order."""

    def resolve(self, units: Units) -> Towers:
        """Returns the features of each tower; a seed gives the same ones on any machine.

        Raises:
            ConfigError: there are more towers than features.
        """
        self.check_count(units)
        towers = [number % self.towers for number in range(len(units))]
        random.Random(self.seed).shuffle(towers)
        return _of_units(units, towers, self.towers)


PartitionConfig = Annotated[Given | Strided | Random, pydantic.Field(discriminator="name")]
"""How features are divided among towers, discriminated by ``name``."""


class NoModule(PartConfig):
    """Embeddings reach the model as they are: towers only say on which host their tables are."""

    name: Literal["none"] = "none"


TowerModuleConfig = Annotated[
    NoModule | DLRMTower.Config | DCNTower.Config | WukongTower.Config, pydantic.Field(discriminator="name")
]
"""What compresses the embeddings of a tower, discriminated by ``name``."""


class TowersConfig(Config):
    """Groups of features whose embeddings are compressed together. With several hosts, a tower's tables and its module
    are on one of them (``parallel.embeddings: {name: tower_transform}``), and only what it returns crosses the links.

    Source: Luo et al., "Disaggregated Multi-Tower: Topology-aware Modeling Technique for Efficient Large-Scale
    Recommendation", arXiv 2403.00877.
    """

    partition: PartitionConfig
    """The features of each tower."""

    module: TowerModuleConfig = NoModule()
    """What compresses the embeddings of a tower."""

    def resolve(self, units: Units) -> Towers:
        """Returns the features of each tower.

        Args:
            units: the features that have tables; those of one unit share a table or a group.

        Raises:
            ConfigError: the partition is none of these features; the message names one.
        """
        return self.partition.resolve(units)


def _of_units(units: Units, tower_of: Sequence[int], towers: int) -> Towers:
    """Returns the features of each tower from the tower of each unit."""
    return tuple(
        tuple(feature for unit, own in zip(units, tower_of, strict=True) if own == tower for feature in unit)
        for tower in range(towers)
    )

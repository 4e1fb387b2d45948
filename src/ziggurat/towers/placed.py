"""Towers of a layout: which of its features, fields and tables each tower has."""

from __future__ import annotations

from ziggurat.core.errors import ConfigError
from ziggurat.embeddings.layout import Layout
from ziggurat.models.model import ModelSettings
from ziggurat.towers.config import NoModule, Towers, TowersConfig
from ziggurat.towers.model import TowerModel


def towers_of(config: TowersConfig, layout: Layout) -> Towers:
    """Returns the features of each tower.

    Raises:
        ConfigError: the partition is none of the layout's features; the message names one.
    """
    return config.resolve(units(layout))


def units(layout: Layout) -> list[tuple[str, ...]]:
    """Returns the features that cannot be divided among towers: those of one table, or of one group.

    Each unit is in the order of the schema, as are their first features.
    """
    unit_of = {feature: [feature] for feature in layout.schema.sparse}
    groups = [spec.features for spec in layout.tables] + [source.features for source in layout.sources]
    for features in groups:
        for feature in features[1:]:
            joined, other = unit_of[features[0]], unit_of[feature]
            if joined is not other:
                joined += other
                unit_of.update(dict.fromkeys(other, joined))
    order = {feature: number for number, feature in enumerate(layout.schema.sparse)}
    found = {id(each): each for each in unit_of.values()}
    return sorted(
        (tuple(sorted(each, key=order.__getitem__)) for each in found.values()), key=lambda unit: order[unit[0]]
    )


def tower_fields(towers: Towers, layout: Layout) -> tuple[tuple[int, ...], ...]:
    """Returns the fields of each tower, counted as in the layout."""
    tower_of = {feature: number for number, tower in enumerate(towers) for feature in tower}
    fields: list[list[int]] = [[] for _ in towers]
    at = 0
    for source in layout.sources:
        fields[tower_of[source.features[0]]].extend(range(at, at + len(source.fields)))
        at += len(source.fields)
    return tuple(map(tuple, fields))


def with_towers(model: ModelSettings, config: TowersConfig, layout: Layout) -> ModelSettings:
    """Returns the config of a model with the modules of its towers; the model's own if the towers have no module.

    Raises:
        ConfigError: the partition is none of the layout's features, or a field belongs to no tower.
    """
    towers = towers_of(config, layout)
    if isinstance(config.module, NoModule):
        return model
    if layout.numbers:
        raise ConfigError(
            f"towers.module: embeddings.numeric_bins makes fields of numbers such as {layout.numbers[0]!r}, which have "
            "no table and so no tower",
            "leave embeddings.numeric_bins out, or set towers.module: {name: none}",
        )
    return TowerModel.Config(base=model, module=config.module, fields=tower_fields(towers, layout))

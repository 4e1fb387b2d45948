"""What ladders beside one another are called, and which can stand there at all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ziggurat.core.errors import ConfigError
from ziggurat.report.scaling.chart import COLOURS
from ziggurat.training.scaling.result import ScaleResult


def titles(results: Sequence[ScaleResult], folders: Sequence[Path] = ()) -> list[str]:
    """The model, with the experiment where two share it, with the folder where they share both.

    Args:
        results: a ladder each.
        folders: where each lies; without them, a number tells apart what nothing else does.
    """
    models = [result.model for result in results]
    return models if _differ(models) else labels(results, folders, model_first=True)


def labels(results: Sequence[ScaleResult], folders: Sequence[Path] = (), *, model_first: bool = False) -> list[str]:
    """Experiment and model, with the folder where two ladders share both."""
    pairs = [(each.model, each.name) if model_first else (each.name, each.model) for each in results]
    found = [", ".join(pair) for pair in pairs]
    if _differ(found):
        return found
    last = folders or range(1, len(found) + 1)
    return [f"{label}, {each}" for label, each in zip(found, last, strict=True)]


def check_comparable(results: Sequence[ScaleResult], folders: Sequence[Path] = ()) -> None:
    """Refuse ladders that cannot be drawn over one another.

    Raises:
        ConfigError: the same folder twice, other data or another split, no finished run, more ladders than colours.
    """
    if len(results) > len(COLOURS):
        raise ConfigError(
            f"{len(results)} ladders in one drawing cannot be told apart", f"compare {len(COLOURS)} at most"
        )
    places = [folder.resolve() for folder in folders]
    for folder, place in zip(folders, places, strict=True):
        if places.count(place) > 1:
            raise ConfigError(f"{folder}: the same ladder is named {places.count(place)} times", "name each once")
    names = [str(folder) for folder in folders] or [result.name for result in results]
    for name, result in zip(names, results, strict=True):
        if not result.finished:
            raise ConfigError(f"{name}: no run is finished", "run the same `ziggurat scale` again to go on")
        for what in ("dataset", "split"):
            ours, theirs = getattr(results[0], what), getattr(result, what)
            if ours != theirs:
                raise ConfigError(
                    f"ladders of different {what}s cannot be compared: {names[0]} has {ours[:12]}, "
                    f"{name} has {theirs[:12]}",
                    "train both with the same data, features and --split",
                )


def _differ(names: Sequence[str]) -> bool:
    return len(set(names)) == len(names)

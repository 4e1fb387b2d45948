"""The JSON of ``scale.json``: numbers that are not finite are null in it, a law is its figures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ziggurat.core.errors import RunFolderError
from ziggurat.metrics.power_law import PowerLawFit
from ziggurat.training.run import LADDER_FILE

FORMAT_VERSION = 1

_AGAIN = "run `ziggurat scale` on it again"


def read_ladder(folder: str | Path) -> dict[str, Any]:
    """The values of the ``scale.json`` in ``folder``.

    Raises:
        RunFolderError: there is none, or none that this version reads.
    """
    path = Path(folder) / LADDER_FILE
    if Path(folder).is_file():
        raise RunFolderError(f"{folder}: is a file", "name the folder of a trained ladder, as in runs/NAME-scale")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "train a ladder into it: `ziggurat scale exp.yaml --run FOLDER`"
        raise RunFolderError(f"{folder}: no ladder ({LADDER_FILE} is missing)", hint) from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: cannot be read: {error}", _AGAIN) from None
    version = cast("dict[str, Any]", values).pop("format_version", None) if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise RunFolderError(f"{path}: format {version!r}, this ziggurat reads {FORMAT_VERSION}", _AGAIN)
    return cast("dict[str, Any]", values)


def described(fit: PowerLawFit) -> dict[str, Any]:
    """The law's constants with their intervals, and how far to believe it."""
    constants: dict[str, Any] = {}
    for name in ("floor", "scale", "exponent"):
        low, high = fit.interval(name)
        constants[name] = {"value": getattr(fit.law, name), "low": low, "high": high}
    return {
        **constants,
        "r2_log": fit.r2_log,
        "trend_p": fit.trend_p,
        "resamples": len(fit.resampled),
        "determined": fit.determined,
        "visible": fit.visible,
        "verdict": fit.verdict,
    }


def without_nan(value: Any) -> Any:
    """``value`` with None for every number that JSON cannot hold."""
    match value:
        case dict():
            return {key: without_nan(item) for key, item in cast("dict[str, Any]", value).items()}
        case list() | tuple():
            return [without_nan(item) for item in cast("list[Any]", value)]
        case float() if not math.isfinite(value):
            return None
        case _:
            return value


def with_nan(figures: Mapping[str, Mapping[str, float | None]]) -> dict[str, dict[str, float]]:
    """Split → figure → value, with nan for what was written as null."""
    return {
        split: {name: math.nan if value is None else value for name, value in values.items()}
        for split, values in figures.items()
    }

"""Reads and prepares the values of ``scale.json``: a law is stored as its figures, and non-finite numbers as null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ziggurat.core.errors import RunFolderError
from ziggurat.metrics.power_law import PowerLawFit
from ziggurat.training.run import SWEEP_FILE

FORMAT_VERSION = 1
SIZES_KEY = "rungs"
"""Key of the list of model sizes in ``scale.json``. The format keeps this older name of them."""

_REWRITE = "run the same `ziggurat scale` command again, which writes this file anew"


def read_sweep(folder: str | Path) -> dict[str, Any]:
    """Returns the values of ``scale.json``, without its format version.

    Args:
        folder: the folder of the sweep.

    Raises:
        RunFolderError: the file is missing, cannot be read or has another format version.
    """
    path = Path(folder) / SWEEP_FILE
    if Path(folder).is_file():
        raise RunFolderError(f"{folder}: is a file", "name the folder of a trained sweep, as in runs/NAME-scale")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        hint = "train a sweep into it: `ziggurat scale exp.yaml --run FOLDER`"
        raise RunFolderError(f"{folder}: holds no scaling sweep ({SWEEP_FILE} is missing)", hint) from None
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path}: cannot be read: {error}", _REWRITE) from None
    version = cast("dict[str, Any]", values).pop("format_version", None) if isinstance(values, dict) else None
    if version != FORMAT_VERSION:
        raise RunFolderError(
            f"{path}: has format version {version!r}, this version of ziggurat reads {FORMAT_VERSION}", _REWRITE
        )
    return cast("dict[str, Any]", values)


def fit_values(fit: PowerLawFit) -> dict[str, Any]:
    """Returns the constants of the fitted law with their intervals, and the figures that say how reliable it is."""
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
    """Returns a copy of nested values in which None replaces every number that JSON cannot hold."""
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
    """Returns the figures of each split, with nan in place of each null."""
    return {
        split: {name: math.nan if value is None else value for name, value in values.items()}
        for split, values in figures.items()
    }

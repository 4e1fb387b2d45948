"""Reads and prepares the values of ``scale.json``: a law is stored as its figures, and non-finite numbers as null."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ziggurat.core.errors import RunFolderError, shorten
from ziggurat.core.sealed import unsealed
from ziggurat.core.untrusted import Damage, read_json_object
from ziggurat.metrics.power_law import PowerLawFit
from ziggurat.training.run_folder.run import SWEEP_FILE

FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, 2)
"""Version 1 has no checksum."""
SIZES_KEY = "rungs"
"""Key of the list of model sizes in ``scale.json``. The format keeps this older name of them."""

REWRITE = Damage(RunFolderError, "run the same `ziggurat scale` command again, which writes this file anew")
"""What the errors about a damaged ``scale.json`` look like."""


def read_sweep(folder: str | Path) -> dict[str, Any]:
    """Returns the values of ``scale.json``, without its format version.

    Args:
        folder: the folder of the sweep.

    Raises:
        RunFolderError: the file is missing, damaged or has another format version.
    """
    path = Path(folder) / SWEEP_FILE
    if Path(folder).is_file():
        raise RunFolderError(f"{folder}: is a file", "name the folder of a trained sweep, as in runs/NAME-scale")
    try:
        values = read_json_object(path, REWRITE)
    except FileNotFoundError:
        hint = "train a sweep into it: `ziggurat scale exp.yaml --run FOLDER`"
        raise RunFolderError(f"{folder}: holds no scaling sweep ({SWEEP_FILE} is missing)", hint) from None
    version = values.get("format_version")
    if version not in _READABLE_VERSIONS:
        raise REWRITE.of(
            path, f"has format version {shorten(version)}, this version of ziggurat reads {FORMAT_VERSION}"
        )
    content = unsealed(values, path, REWRITE, required=version > 1)
    del content["format_version"]
    return content


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

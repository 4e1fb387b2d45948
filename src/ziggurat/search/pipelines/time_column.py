"""Times as prepared features of which the seconds are found again, for the table of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ziggurat.data.readers.cells.times import holds_hours
from ziggurat.features.config import TimeFeature
from ziggurat.features.numeric.steps import Standardise
from ziggurat.features.transform import Transform
from ziggurat.search.pipelines.table import Floats

_DAY_S = 86_400.0


def neutral_times(feature: TimeFeature, stem: str) -> list[dict[str, Any]]:
    """Returns features that carry the times of a column: age, weekday and, where it has one, the time of the day.

    Args:
        feature: the column's feature.
        stem: what their names begin with.
    """
    parts = ("age", "weekday", "hour") if holds_hours(feature.time_format) else ("age", "weekday")
    shared = {"column": feature.source_column, "kind": "time", "format": feature.time_format}
    return [{**shared, "name": f"{stem}_{part}", "part": part} for part in parts]


def seconds_of(stem: str, values: Mapping[str, Floats], transform: Transform) -> Floats:
    """Returns seconds since 1970 of the rows, exact to a hundredth, NaN for missing.

    The age alone, a standardised float32, is exact to seconds, which would move times near midnight to another day.

    Args:
        stem: what the names of the features that carry them begin with.
        values: name of a prepared column -> (N,) its values, those of :func:`neutral_times` among them.
        transform: what prepared them.
    """
    standard = next(step for step in transform.chains[f"{stem}_age"].steps if isinstance(step, Standardise))
    days = values[f"{stem}_age"] * standard.std + standard.mean
    sine, cosine = (values.get(f"{stem}_hour_{wave}", np.zeros(len(days))) for wave in ("sin", "cos"))
    share = np.mod(np.arctan2(sine, cosine) / (2 * np.pi), 1.0)
    seconds = np.round((np.round(days - share) + share) * _DAY_S, 2)
    weekday_sine, weekday_cosine = (values[f"{stem}_weekday_{wave}"] for wave in ("sin", "cos"))
    return np.where((weekday_sine == 0) & (weekday_cosine == 0), np.nan, seconds)

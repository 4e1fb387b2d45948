"""Trials whose settings an earlier trial had, and spaces whose settings have all been tried."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ziggurat.search.dimension import as_text

if TYPE_CHECKING:
    from ziggurat.search.space import Space
    from ziggurat.search.study import TrialRecord


def twin(records: Sequence[TrialRecord], settings: Mapping[str, Any]) -> TrialRecord | None:
    """Returns the first complete trial that was trained with these settings; None if there is none."""
    trained = (each for each in records if each.state == "complete" and each.same_as is None)
    return next((each for each in trained if as_text(each.settings) == as_text(settings)), None)


def is_exhausted(records: Sequence[TrialRecord], space: Space) -> bool:
    """Whether trials have begun with all settings of a space, so that no other ones are left."""
    counts = [dimension.count for dimension in space.values()]
    finite = [count for count in counts if count is not None]
    if len(finite) < len(counts) or math.prod(finite) > len(records):
        return False
    inside = (
        each.settings
        for each in records
        if all(space[key].number(value) is not None for key, value in each.settings.items())
    )
    return len({as_text(settings) for settings in inside}) >= math.prod(finite)

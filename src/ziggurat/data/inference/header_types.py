"""Headers that say what their columns hold, as RecBole writes them: ``user_id:token``, ``item_list:token_seq``.

A token is an id, whatever its digits; ``token_seq`` is tokens with blanks between them; ``float`` is a number, and
``float_seq`` a list of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from ziggurat.core.schema import ValueType
from ziggurat.data.inference.columns import ColumnProfile, list_profile, text_profile
from ziggurat.data.inference.sample import LogSample
from ziggurat.data.inference.words import header_type

_DELIMITER = " "


def with_header_types(profiles: Sequence[ColumnProfile], sample: LogSample) -> list[ColumnProfile]:
    """Returns the profiles as the header declares them; those of columns without a type are unchanged."""
    return [_declared(profile, sample) for profile in profiles]


def _declared(profile: ColumnProfile, sample: LogSample) -> ColumnProfile:
    kind = header_type(profile.name)
    cells = sample.frame[profile.name]
    if kind is None or cells.dtype != pl.String:
        return profile
    match kind:
        case "token" if profile.many or profile.type is ValueType.FLOAT or profile.number_ways:
            profile = text_profile(cells, sample.complete)
        case "token_seq" | "float_seq":
            profile = list_profile(cells, _DELIMITER, sample.complete)
        case _:
            pass
    if kind == "token":
        profile = replace(profile, time_format=None, time_note="", is_temporal=False)
    return replace(profile, declared=kind)

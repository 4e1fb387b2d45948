"""Parses JSON so that a key that one object holds more than once is known, where Python would keep the last value."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

REPEATED_KEY = "repeated key"


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """Stands for the values of a key that an object holds more than once."""

    key: str


def load_json(text: str | bytes, repeated: list[str] | None = None) -> Any:
    """Returns the value that ``text`` is, with :class:`RepeatedKey` for the values of keys that an object repeats.

    Args:
        text: JSON.
        repeated: a list to which these keys are added.

    Raises:
        ValueError, RecursionError: the text is no JSON, or nested too deeply.
    """
    return json.loads(text, object_pairs_hook=partial(_object, repeated))


def repeated_paths(value: Any, steps: tuple[str, ...] = ()) -> Iterator[str]:
    """Yields the paths of the keys that objects in a value of :func:`load_json` repeat, in their order."""
    if isinstance(value, RepeatedKey):
        yield ".".join(steps)
    elif isinstance(value, dict):
        for key, inner in cast("dict[str, Any]", value).items():
            yield from repeated_paths(inner, (*steps, key))
    elif isinstance(value, list):
        for each in cast("list[Any]", value):
            yield from repeated_paths(each, steps)


def _object(repeated: list[str] | None, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        found.update((key, RepeatedKey(key)) for key in keys)
        if repeated is not None:
            repeated += keys
    return found

"""Finds values in JSON objects by path, row by row, and the Arrow types with which pyarrow parses them.

Paths mean what they mean in :mod:`ziggurat.data.readers.columnar.paths`: a key that exists as a whole takes precedence,
and a key of the objects in a list gives a list.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import pyarrow as pa

from ziggurat.core.errors import shorten
from ziggurat.data.readers.cells.text import RejectedCell
from ziggurat.data.readers.columnar.paths import splits
from ziggurat.data.readers.json_lines.repeated_keys import REPEATED_KEY, RepeatedKey
from ziggurat.data.readers.rejection_reasons import rejection_reason

WRONG_JSON = "wrong JSON type"

_MOST_DEPTH = 64

Object = dict[str, Any]
Steps = tuple[str, ...]


def find_steps(objects: Sequence[Object], name: str) -> Steps | None:
    """Returns the keys that ``name`` means in these objects; None if no object has them."""
    for key, rest in splits(name):
        values = [each[key] for each in objects if key in each]
        if not values:
            continue
        if not rest:
            return (key,)
        deeper = find_steps([inner for value in values for inner in _objects_in(value)], rest)
        if deeper is not None:
            return (key, *deeper)
    return None


def look_up(value: Any, steps: Steps) -> Any:
    """Returns the value that ``steps`` lead to; null where a key is absent.

    Raises:
        RejectedCell: a step leads into a value that is no object, or to a key that its object repeats.
    """
    for position, step in enumerate(steps):
        if value is None:
            return None
        _check_once(value)
        if isinstance(value, list):
            return [look_up(element, steps[position:]) for element in cast("list[Any]", value)]
        if not isinstance(value, dict):
            received = f"received {shorten(value)}, an object with the key {step!r} is declared"
            raise RejectedCell(rejection_reason(WRONG_JSON, received, "correct the row, or the feature's `column`"))
        value = cast("Object", value).get(step)
    _check_once(value)
    return value


def _check_once(value: Any) -> None:
    if isinstance(value, RepeatedKey):
        received = f"received the key {shorten(value.key)} more than once in an object"
        raise RejectedCell(rejection_reason(REPEATED_KEY, received, "keep one of its values"))


def nested_type(
    values: Iterable[Any], columns: Sequence[tuple[Steps, pa.DataType]], depth: int = 0
) -> pa.DataType | None:
    """Returns the Arrow type of values in which columns are looked up; None if they are mixed or nested very deeply.

    Args:
        values: values at one place of the rows.
        columns: the remaining steps of each column, and the type to assume where no row has a value.
        depth: how many lists and objects the values are in.
    """
    if depth > _MOST_DEPTH:
        return None
    present = [value for value in values if value is not None and not isinstance(value, RepeatedKey)]
    kinds = set(map(type, present))
    if kinds == {list}:
        element = nested_type((each for value in present for each in value), columns, depth + 1)
        return None if element is None else pa.list_(element)
    if not columns[0][0]:
        if len(columns) > 1 and any(steps for steps, _ in columns):
            return None
        return columns[0][1] if not present else scalar_type(present)
    if kinds not in (set[type](), {dict}):
        return None
    fields: list[tuple[str, pa.DataType]] = []
    for key in dict.fromkeys(steps[0] for steps, _ in columns if steps):
        below = [(steps[1:], kind) for steps, kind in columns if steps and steps[0] == key]
        kind = nested_type((value.get(key) for value in present), below, depth + 1)
        if kind is None:
            return None
        fields.append((key, kind))
    return pa.struct(fields) if all(steps for steps, _ in columns) else None


def scalar_type(values: Sequence[Any]) -> pa.DataType | None:
    """Returns the Arrow type of scalar JSON values of one type; None if they are mixed or none."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return pa.int64() if max(values) < 2**63 or min(values) < 0 else pa.uint64()
    if kinds <= {int, float}:
        return pa.float64()
    return {str: pa.string(), bool: pa.bool_()}.get(kinds.pop()) if len(kinds) == 1 else None


def _objects_in(value: Any) -> list[Object]:
    objects: list[Object] = []
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            objects.append(cast("Object", each))
        elif isinstance(each, list):
            pending.extend(cast("list[Any]", each))
    return objects

"""Turns sampled JSON objects into a flat sample, as the JSON reader sees their values, with reasons for the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import polars as pl

from ziggurat.data.inference.nested import (
    FRACTIONS,
    KEY_SHARE,
    LIST_OF_LISTS,
    MOST_DEPTH,
    MOST_KEYS,
    FlatSample,
    is_fractional_list,
)
from ziggurat.data.inference.numeric.plain_numbers import EXACT_FLOAT, all_whole
from ziggurat.data.readers.json_lines.cells import is_list_of_lists
from ziggurat.data.readers.json_lines.paths import Object, Steps, find_steps
from ziggurat.data.readers.json_lines.repeated_keys import RepeatedKey

_FEW_KEYS = 64
"""An object with more keys than this is taken for a map, whose rare keys become no columns."""
_MOST_PATHS = 50_000
_MISSING: Any = None


class _Found:
    """The values at one path: one for each row, None where there is none."""

    def __init__(self, rows: int) -> None:
        self.values: list[Any] = [None] * rows
        self.count = 0
        self.kinds: set[type] = set()
        self.elements: set[type] = set()
        self.nested = False

    def set(self, row: int, value: Any) -> None:
        self.count += 1
        self.values[row] = value
        kind = type(value)
        self.kinds.add(kind)
        if kind is list:
            self.elements.update(map(type, value))


def flatten_objects(objects: Sequence[Object]) -> FlatSample:
    """Returns a flat sample of JSON objects."""
    walk = _Walk(len(objects))
    for row, each in enumerate(objects):
        walk.object(row, each, (), [])
    return walk.result(objects)


class _Walk:
    """Collects the values of all paths, row by row."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._found: dict[Steps, _Found] = {}
        self._inside: set[Steps] = set()
        self._lists: dict[Steps, dict[int, list[Any]]] = {}
        self._left_out: dict[str, str] = {}
        self._repeated: dict[Steps, int] = {}

    def object(self, row: int, value: Object, steps: Steps, lists: list[dict[Steps, list[Any]]]) -> None:
        """Collects the values of an object; those of objects in lists go into the last of ``lists``."""
        for key, inner in value.items():
            if inner is not None:
                self._value(row, inner, (*steps, key), lists)

    def _value(self, row: int, value: Any, steps: Steps, lists: list[dict[Steps, list[Any]]]) -> None:
        if len(steps) > MOST_DEPTH:
            self._left_out[".".join(steps[:MOST_DEPTH])] = f"nested more than {MOST_DEPTH} levels deep"
        elif isinstance(value, RepeatedKey):
            self._repeated[steps] = self._repeated.get(steps, 0) + 1
        elif isinstance(value, dict):
            self._inside.add(steps)
            self.object(row, cast("Object", value), steps, lists)
        elif isinstance(value, list):
            self._list(row, cast("list[Any]", value), steps, lists)
        elif lists:
            lists[-1].setdefault(steps, []).append(value)
        else:
            self._set(row, steps, value)

    def _list(self, row: int, value: list[Any], steps: Steps, lists: list[dict[Steps, list[Any]]]) -> None:
        flat, nested = _flat(value)
        objects = [each for each in flat if isinstance(each, dict)]
        if not lists and (objects or not any(each is not None for each in flat)):
            self._lists.setdefault(steps, {})[row] = [] if objects else flat
        if not objects:
            if not any(each is not None for each in flat):
                return
            if lists:
                lists[-1].setdefault(steps, []).extend(flat)
            else:
                self._set(row, steps, flat, nested)
            return
        if len(objects) < len([each for each in flat if each is not None]):
            self._left_out[".".join(steps)] = "lists of objects and other values together"
            return
        self._inside.add(steps)
        if lists:
            for each in objects:
                self.object(row, cast("Object", each), steps, lists)
            return
        collected: dict[Steps, list[Any]] = {}
        for each in objects:
            self.object(row, cast("Object", each), steps, [collected])
        for path, values in collected.items():
            self._set(row, path, values)

    def _set(self, row: int, steps: Steps, value: Any, nested: bool = False) -> None:
        found = self._found.get(steps)
        if found is None:
            if len(self._found) >= _MOST_PATHS:
                self._left_out[".".join(steps[:-1] or steps)] = (
                    f"more than {_MOST_PATHS:,} keys in all: the further ones"
                )
                return
            found = self._found[steps] = _Found(self._rows)
        found.set(row, value)
        found.nested |= nested

    def _fill_lists(self) -> None:
        """Sets the rows whose lists hold no values: a list that is empty differs from one that is missing."""
        for steps, rows in self._lists.items():
            if steps not in self._found and steps not in self._inside:
                for row, value in rows.items():
                    self._set(row, steps, value)
        for steps, found in self._found.items():
            for end in range(1, len(steps) + 1):
                for row, value in self._lists.get(steps[:end], {}).items():
                    if found.values[row] is None:
                        found.set(row, value if end == len(steps) else [])

    def result(self, objects: Sequence[Object]) -> FlatSample:
        """Returns the columns, in the order in which their keys first appear."""
        self._fill_lists()
        left_out, notes, series = self._left_out, dict[str, str](), list[pl.Series]()
        for steps, count in self._repeated.items():
            left_out[".".join(steps)] = f"its key stands more than once in {count:,} objects: keep one of its values"
        keys_in = Counter(steps[:-1] for steps in self._found)
        rare: Counter[Steps] = Counter()
        taken: Counter[Steps] = Counter()
        dotted = any("." in step for steps in self._found for step in steps)
        least = max(2, int(KEY_SHARE * self._rows))
        for steps, found in self._found.items():
            name = ".".join(steps)
            if len(steps) > 1 and keys_in[steps[:-1]] > _FEW_KEYS:
                taken[steps[:-1]] += found.count >= least
                if found.count < least or taken[steps[:-1]] > MOST_KEYS:
                    rare[steps[:-1]] += 1
                    continue
            if name in left_out:
                continue
            if not name.strip():
                left_out[name] = "a key without a name"
                continue
            if any(steps[:end] in self._repeated for end in range(1, len(steps))):
                continue
            if steps in self._inside:
                left_out[name] = "an object in some rows, and a value in others"
                continue
            if any(steps[:end] in self._found for end in range(1, len(steps))):
                left_out[name] = "inside of what is no object in some rows"
                continue
            if dotted and find_steps(objects, name) != steps:
                left_out.setdefault(name, "another key has this name")
                continue
            reason = _unusable(found)
            if reason is not None:
                left_out[name] = reason
                continue
            if found.nested:
                notes[name] = LIST_OF_LISTS
            column = _series(name, found)
            if is_fractional_list(column):
                left_out[name] = FRACTIONS
                continue
            series.append(column)
        for steps, count in rare.items():
            left_out[".".join(steps)] = (
                f"{count:,} of its {keys_in[steps]:,} keys: in fewer than {least:,} sampled rows, or rarer than "
                f"{MOST_KEYS} others"
            )
        present = {each.name for each in series}
        for key in dict.fromkeys(key for each in objects for key in each):
            if key.strip() and key not in present and (key,) not in self._inside and key not in left_out:
                series.append(pl.Series(key, [None] * self._rows, dtype=pl.String))
        frame = pl.DataFrame(series) if series else pl.DataFrame()
        return FlatSample(frame, left_out, notes)


def _flat(value: list[Any]) -> tuple[list[Any], bool]:
    """Returns the elements of a list, or of lists of lists, and whether they were such."""
    nested = False
    while is_list_of_lists(value):
        value, nested = [element for inner in value for element in inner or ()], True
    return value, nested


def _unusable(found: _Found) -> str | None:
    """Returns why no column can be made of values: text columns take no fractions, whose digits would be a guess."""
    kinds = (found.kinds | found.elements) - {list, type(None)}
    if list in found.elements:
        return "lists in lists, beside other values"
    if dict in found.elements:
        return "objects and other values together in lists"
    if float in kinds and str in kinds and not all(map(_is_number, _texts(found))):
        return "fractions in some rows, and text in others"
    return None


def _texts(found: _Found) -> Iterable[str]:
    for value in found.values:
        for each in cast("list[Any]", value) if isinstance(value, list) else (value,):
            if isinstance(each, str):
                yield each


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return not text
    return True


def _series(name: str, found: _Found) -> pl.Series:
    kinds = (found.kinds | found.elements) - {list, type(None)}
    scalars, dtype = _converter(found, kinds)
    if list not in found.kinds:
        return pl.Series(name, [None if value is None else scalars(value) for value in found.values], dtype=dtype)
    rows = [
        None
        if value is None
        else [None if each is None else scalars(each) for each in cast("list[Any]", value)]
        if isinstance(value, list)
        else [scalars(value)]
        for value in found.values
    ]
    series = pl.Series(name, rows, dtype=pl.List(dtype))
    lengths = set(map(len, filter(None, rows)))
    empty = any(row is not None and not row for row in rows)
    if dtype == pl.Float64 and len(lengths) == 1 and not empty and min(lengths) > 1:
        elements = series.explode()
        none_missing = not any(None in row for row in rows if row is not None)
        if none_missing and not all_whole(elements.drop_nulls()):
            return series.list.to_array(lengths.pop())
    return series


def _converter(found: _Found, kinds: set[type]) -> tuple[Any, Any]:
    """Returns a function for values of these types, and the type of the series."""
    if kinds == {bool}:
        return bool, pl.Boolean
    if kinds == {int} or kinds == {int, bool}:
        beyond = any(not -(2**63) <= value < 2**63 for value in _numbers(found))
        return (str, pl.String) if beyond else (int, pl.Int64)
    if kinds and kinds <= {int, float, bool}:
        values = [*_numbers(found)]
        whole = any(abs(value) >= EXACT_FLOAT for value in values) and all(map(_is_int64, values))
        return (int, pl.Int64) if whole else (float, pl.Float64)
    return _text, pl.String


def _is_int64(value: float) -> bool:
    return -(2**63) <= value < 2**63 and value == int(value)


def _numbers(found: _Found) -> Iterable[float]:
    for value in found.values:
        yield from (each for each in value if each is not None) if isinstance(value, list) else (value or 0,)


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode() or None
    return str(value)

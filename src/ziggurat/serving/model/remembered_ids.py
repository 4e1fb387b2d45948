"""The ids of values that a transform has encoded before.

An id feature gives each value an id by itself, whatever else a row or a batch holds. So the transform, which takes
about as long for one value as for a hundred, is asked once for each value, and what it said is remembered within
bounds. No second implementation of an encoder exists that could differ.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from ziggurat.core.errors import ZigguratError
from ziggurat.data.readers.frame.columns import FAILURES
from ziggurat.data.readers.table_reader import read_table
from ziggurat.features.config import BagFeature, CategoricalFeature, SequenceFeature
from ziggurat.features.transform import Transform

Value = str | int | None
IdFeature = CategoricalFeature | BagFeature | SequenceFeature
DROPPED, REFUSED = -1, -2
"""In place of an id: a missing value in a list, which is left out; a value that the transform does not take."""
LONGEST = 256
"""Most characters of a value that is remembered."""


class RememberedIds:
    """The ids of the values of one feature.

    Two dictionaries hold them: when the first is full it becomes the second. So at most twice ``most`` are held, and
    those that are in use stay.

    Args:
        transform: encodes the feature.
        feature: the feature, whose values have one id each.
        most: the values of a dictionary.
    """

    def __init__(self, transform: Transform, feature: IdFeature, most: int) -> None:
        self.feature = feature
        self._transform, self._most = transform.restricted([feature.name]), most
        self._schema = self._transform.raw_schema(labelled=False)
        self._many = not isinstance(feature, CategoricalFeature)
        self._new: dict[Value, int] = {}
        self._old: dict[Value, int] = {}

    def __len__(self) -> int:
        """Returns how many values are remembered; one that is in both dictionaries counts twice."""
        return len(self._new) + len(self._old)

    def of(self, values: Sequence[Value]) -> list[int]:
        """Returns the id of each value, :data:`DROPPED` or :data:`REFUSED`."""
        known = self._new
        try:
            return [known[value] for value in values]
        except KeyError:
            return self._found(values)

    def _found(self, values: Sequence[Value]) -> list[int]:
        known = {value: self._new.get(value, self._old.get(value)) for value in values}
        short = [value for value in known if not isinstance(value, str) or len(value) <= LONGEST]
        found = {value: one for value in short if (one := known[value]) is not None}
        for kind in (int, str, type(None)):
            found |= self._learn([value for value in short if known[value] is None and type(value) is kind])
        for value, one in found.items():
            self._remember(value, one)
        return [found.get(value, REFUSED) for value in values]

    def _learn(self, values: list[Value]) -> dict[Value, int]:
        """Returns what the transform makes of values of one type; nothing of those with which it fails."""
        if not values:
            return {}
        (column,) = self._schema.names
        try:
            array = pa.array([[value] for value in values] if self._many else values)
            block = read_table(pa.table({column: array}), self._schema)
            encoded = self._transform.apply(block, labelled=False)
        except (*FAILURES, OverflowError, ZigguratError):
            if len(values) == 1:
                return {}  # the whole request is read as a table, which names what is wrong
            middle = len(values) // 2
            return self._learn(values[:middle]) | self._learn(values[middle:])
        found = dict.fromkeys(values, REFUSED)
        places = (block.lines[encoded.kept_rows] - 1).tolist()
        for place, ids in zip(places, encoded.batch.column(self.feature.name).to_pylist(), strict=True):
            if not self._many:
                found[values[place]] = ids
            elif len(ids) <= 1:
                found[values[place]] = ids[0] if ids else DROPPED
        return found

    def _remember(self, value: Value, known: int) -> None:
        if value in self._new:
            return
        if len(self._new) >= self._most:
            self._old, self._new = self._new, {}
        self._new[value] = known

"""Compares an encoder with the one that is restored from its saved state: the same rows, and the same id for any value.

A state that lacks something, or a transform whose ids depend on more than the value, would otherwise show only in the
predictions, as wrong ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import FeatureError, ZigguratError, shorten
from ziggurat.core.hashing import hash_array, to_unit_interval
from ziggurat.core.outside.failures import described, own_lines
from ziggurat.features.encoders.checks import checked_encoder, checked_ids, checked_rows, checked_unknown_rows
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings, Ids, ProxyVectors

MOST_SAMPLED = 2**16
"""The most values of a table that are compared."""
_MADE_UP = 256
_OTHER_DIGITS = str.maketrans("0123456789", "1234567890")
_INT64 = np.iinfo(np.int64)
ONE_VALUE_ONE_ID = (
    "let the id depend on the value alone: not on the other values of the call, their order, or what was encoded before"
)
SAVE_ALL = "let `to_state` save everything that `transform`, `rows` and `unknown_rows` need, and `from_state` read it"
_ANY_VALUE = "let `transform` give an id to every value of its type: predictions meet values that training has not seen"


class RoundTripSample:
    """Evenly chosen values of a table with the ids that they were given.

    Args:
        total: how many values :meth:`add` will get in all.
        most: how many to choose at most.
    """

    def __init__(self, total: int, most: int = MOST_SAMPLED) -> None:
        self._every = max(1, -(-total // most))
        self._skip = 0
        self._values: list[pa.Array] = []
        self._ids: list[Ids] = []

    def add(self, values: pa.Array, ids: Ids) -> None:
        """Chooses some of these values."""
        chosen = np.arange(self._skip, len(values), self._every)
        self._skip += len(chosen) * self._every - len(values)
        if len(chosen):
            self._values.append(values.take(pa.array(chosen)))
            self._ids.append(ids[chosen])

    def values(self, kind: pa.DataType) -> pa.Array:
        """Returns the chosen values; ``kind`` is their type, if there are none."""
        return pa.concat_arrays(self._values) if self._values else pa.array([], kind)

    def ids(self) -> Ids:
        """Returns their ids."""
        return np.concatenate(self._ids) if self._ids else np.empty(0, np.int64)


def made_up_values(known: pa.Array, config: EncoderSettings) -> pa.Array:
    """Returns values of the form of known ones, most of which do not occur among them; none that would be rejected."""
    if not pa.types.is_integer(known.type):
        texts = [str(text) for text in known.slice(0, _MADE_UP // 2).to_pylist()]
        return pa.array(
            [text.translate(_OTHER_DIGITS) for text in texts] + [f"{text}_new" for text in texts], known.type
        )
    allowed = config.valid_ids
    if allowed is not None:
        return pa.array(allowed[:: max(1, len(allowed) // _MADE_UP)], known.type)
    numbers: Any = known.to_numpy(zero_copy_only=False)
    lowest, highest = (int(numbers.min()), int(numbers.max())) if len(numbers) else (0, 0)
    beyond = [*range(lowest - 64, lowest), *range(highest + 1, highest + 65), 0, -1, 2 * highest + 1, 10 * highest + 7]
    return pa.array([number for number in beyond if _INT64.min <= number <= _INT64.max], known.type)


def made_up_vectors(values: pa.Array, dim: int) -> ProxyVectors:
    """Returns vectors in place of those of a proxy, which depend on the values alone."""
    columns = [to_unit_interval(hash_array(values, seed)) for seed in range(dim + 1)]
    return ProxyVectors(np.stack(columns, axis=1).astype(np.float32))


def spread(values: pa.Array, most: int) -> pa.Array:
    """Returns at most ``most`` of these values, evenly chosen."""
    return values.take(pa.array(np.arange(0, len(values), max(1, -(-len(values) // most)))))


def compare_restored(
    encoder: Encoder, restored: Any, known: pa.Array, ids: Ids, made_up: pa.Array | None, where: str
) -> None:
    """Compares a fitted encoder with a restored one, on known values and on others.

    Args:
        encoder: the fitted encoder.
        restored: what ``from_state`` made of its state.
        known: values (n,) that it was fitted on.
        ids: the ids (n,) that it gave them.
        made_up: other values. None: the fitted encoder gets no values any more, only the restored one gets the known
            ones; so it is for built-in encoders, for which one large index less is made.
        where: the encoder, for messages.

    Raises:
        FeatureError: they differ, a value has two ids, or a value has none.
    """
    checked_encoder(restored, where, "from_state")
    rows = checked_rows(encoder, where)
    for name, before, after in (
        ("rows", rows, checked_rows(restored, where)),
        ("unknown_rows", encoder.unknown_rows, checked_unknown_rows(restored, rows, where)),
    ):
        if before != after:
            raise FeatureError(
                f"{where}: `from_state` does not restore what `to_state` saved: `{name}` was {before}, it is {after}",
                SAVE_ALL,
            )
    _compare_ids(restored, known, ids, rows, where)
    if made_up is not None:
        _check_order(encoder, known, ids, rows, where)
        _compare_ids(restored, made_up, ids_of_any(encoder, made_up, rows, where), rows, where)


def _compare_ids(restored: Encoder, values: pa.Array, before: Ids, rows: int, where: str) -> None:
    after = ids_of_any(restored, values, rows, f"{where}: restored by `from_state`")
    position = first_difference(before, after)
    if position is not None:
        raise FeatureError(
            f"{where}: `from_state` does not restore what `to_state` saved: the value "
            f"{shorten(values[position].as_py())} had the id {before[position]}, it has {after[position]}",
            SAVE_ALL,
        )


def _check_order(encoder: Encoder, values: pa.Array, ids: Ids, rows: int, where: str) -> None:
    """Checks that the values have the same ids again in another order."""
    backwards = values.take(pa.array(np.arange(len(values))[::-1]))
    again = checked_ids(encoder.transform(backwards), backwards, rows, where)[::-1]
    position = first_difference(ids, again)
    if position is not None:
        raise FeatureError(
            f"{where}: `transform` gives the value {shorten(values[position].as_py())} the id {ids[position]} in one "
            f"call and {again[position]} in another",
            ONE_VALUE_ONE_ID,
        )


def ids_of_any(encoder: Encoder, values: pa.Array, rows: int, where: str, codes: int | None = None) -> Ids:
    """Returns the ids of values, which the encoder may not have met.

    Raises:
        FeatureError: it has none for one of them.
    """
    try:
        ids = encoder.transform(values)
    except Exception as error:
        value = shorten(_refused(encoder, values).as_py()) if len(values) else "no values"
        raise FeatureError(f"{where}: `transform` fails for {value}: {describe(error)}", _ANY_VALUE) from error
    return checked_ids(ids, values, rows, where, codes)


def describe(error: BaseException) -> str:
    """Returns the type and the text of an exception, and the lines of the encoder's own code that led to it."""
    message = error.problem if isinstance(error, ZigguratError) else described(error)
    return "\n  ".join([message, *own_lines(error.__traceback__)])


def first_difference(before: Ids | Sequence[int], after: Ids | Sequence[int]) -> int | None:
    """Returns the position of the first difference; None if there is none."""
    first, second = np.asarray(before), np.asarray(after)
    if first.shape != second.shape:
        return 0
    unequal = first != second
    differing = np.flatnonzero(unequal if unequal.ndim == 1 else unequal.any(axis=1))
    return int(differing[0]) if len(differing) else None


def _refused(encoder: Encoder, values: Iterable[Any]) -> Any:
    """Returns the first value that the encoder refuses by itself; if it refuses none so, the first one."""
    for value in values:
        try:
            encoder.transform(pa.array([value.as_py()], value.type))
        except Exception:  # noqa: BLE001 - whatever the encoder raises
            return value
    return next(iter(values))

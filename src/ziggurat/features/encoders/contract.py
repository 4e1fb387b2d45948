"""The contract of encoders of ids as one function, for tests of encoders in this package and outside it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ziggurat.core.errors import DataError, FeatureError, shorten
from ziggurat.core.schema import ValueType
from ziggurat.features.encoders.checks import (
    checked_ids,
    checked_rows,
    checked_state,
    checked_unknown_rows,
    fitted_encoder,
)
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings, Ids, ValueCounts
from ziggurat.features.encoders.files import load_encoder, save_encoder
from ziggurat.features.encoders.round_trip import (
    ONE_VALUE_ONE_ID,
    SAVE_ALL,
    compare_restored,
    first_difference,
    ids_of_any,
    made_up_values,
    made_up_vectors,
)

_Fit = tuple[Encoder, int, Ids]
"""A fitted encoder, its rows, and the ids of the values that it was fitted on."""

_ALONE = 200
"""About how many values are encoded alone."""
_SAME_FIT = "let `fit` depend on the counts alone: not on their order, on random numbers, or on what was fitted before"
_EXTREME_TEXTS = ("", " ", "0", "-1", "NULL", "ünï", "\U0001f3fa", "line\nend", "a" * 5000)
_EXTREME_NUMBERS = (0, 1, -1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, -(2**63))


def check_encoder(
    config: EncoderSettings, values: Sequence[int] | Sequence[str] | pa.Array, counts: Sequence[int] | None = None
) -> Encoder:
    """Fits an encoder of ids and checks all that its contract promises; for a test of one's own encoder.

    These are the checks: ``fit`` gives the same encoder for the same counts in any order. Each value has one id, alone
    and among others, also a value that did not occur, an empty text and the largest integer. Ids are whole numbers in
    ``[0, rows)``; values that did not occur have ids in ``unknown_rows``, unless that is empty. The state can be saved
    in files, from which an encoder with the same rows and ids is restored, whose own state is the same.

    Args:
        config: the config of the encoder, such as ``MyEncoder.Config(buckets=10)``.
        values: distinct integers or texts to fit it on, two or more.
        counts: how often each of them occurs; default: 1, 2, 3 and so on.

    Returns:
        The fitted encoder.

    Raises:
        FeatureError: the encoder breaks its contract; the message says where.
        InvalidSection: it does not accept values of this type.
        Exception: what ``fit`` raises.
    """
    where = f"encoder {config.title}"
    known = _as_array(values)
    is_integer = pa.types.is_integer(known.type)
    config.check_type(ValueType.INTEGER if is_integer else ValueType.TEXT)
    _check_version(config, where)
    occurrences = np.arange(1, len(known) + 1) if counts is None else np.array(counts, np.int64)
    if occurrences.shape != (len(known),):
        raise FeatureError(
            f"check_encoder: {len(known)} values with {len(occurrences)} counts", "give one count a value"
        )
    encoder, rows, ids = _fit(config, known, occurrences, where)
    made_up = _others(known, config)
    _check_order(config, encoder, known, occurrences, made_up, where)
    everything = pa.concat_arrays([known, made_up])
    all_ids = np.concatenate([ids, ids_of_any(encoder, made_up, rows, where)])
    _check_alone(encoder, everything, all_ids, rows, where)
    _check_unknown(encoder, made_up, all_ids[len(ids) :], rows, where)
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name) / "first", Path(name) / "second"
        restored = _saved_and_restored(config, encoder, first, where)
        compare_restored(encoder, restored, known, ids, made_up, where)
        _saved_and_restored(config, restored, second, where)
        _compare_files(first, second, where)
    return encoder


def _as_array(values: Sequence[int] | Sequence[str] | pa.Array) -> pa.Array:
    """Returns the values as int64 or string.

    Raises:
        FeatureError: they cannot be, are fewer than two, or one occurs twice or is null.
    """
    found: Any = values if isinstance(values, pa.Array) else pa.array(values)
    kind = pa.int64() if pa.types.is_integer(found.type) else pa.string()
    if len(found) < 2 or found.null_count or len(found.unique()) < len(found):
        raise FeatureError(
            f"check_encoder: values are {shorten(found.to_pylist())}",
            "give two or more distinct values, none of them null",
        )
    return found.cast(kind)


def _check_version(config: EncoderSettings, where: str) -> None:
    version: Any = config.version
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise FeatureError(f"{where}: `version` is {shorten(version)}", "let it be a whole number from 1 on")


def _fit(config: EncoderSettings, values: pa.Array, counts: npt.NDArray[np.int64], where: str) -> _Fit:
    """Fits the encoder as preparation does; returns it with its rows and the ids of the values."""
    given = ValueCounts(values, counts) if config.counts_values else None
    proxy = None if config.proxy is None else made_up_vectors(values, config.proxy.dim)
    encoder, found = fitted_encoder(config, given, where, proxy)
    rows = checked_rows(encoder, where)
    ids = ids_of_any(encoder, values, rows, where, config.codes)
    if found is not None and (position := first_difference(checked_ids(found, values, rows, where), ids)) is not None:
        raise FeatureError(
            f"{where}: `fit_with_ids` gives the value {shorten(values[position].as_py())} the id {found[position]}, "
            f"`transform` the id {ids[position]}",
            ONE_VALUE_ONE_ID,
        )
    return encoder, rows, ids


def _others(known: pa.Array, config: EncoderSettings) -> pa.Array:
    """Returns values that are not among the known ones: of their form, and extreme ones that are allowed."""
    extremes: tuple[Any, ...] = _EXTREME_NUMBERS if pa.types.is_integer(known.type) else _EXTREME_TEXTS
    if config.valid_ids is not None:
        extremes = tuple(each for each in extremes if each in config.valid_ids)
    seen = set(known.to_pylist())
    found = dict.fromkeys([*made_up_values(known, config).to_pylist(), *extremes])
    return pa.array([each for each in found if each not in seen], known.type)


def _check_order(
    config: EncoderSettings,
    encoder: Encoder,
    values: pa.Array,
    counts: npt.NDArray[np.int64],
    made_up: pa.Array,
    where: str,
) -> None:
    """Fits the encoder again, on the same counts in other orders, and compares the ids of all values."""
    everything = pa.concat_arrays([values, made_up])
    rows = checked_rows(encoder, where)
    expected = ids_of_any(encoder, everything, rows, where)
    backwards = np.arange(len(values))[::-1]
    for order in (np.arange(len(values)), backwards, np.roll(backwards, len(values) // 2)):
        again, rows_again, _ = _fit(config, values.take(pa.array(order)), counts[order], where)
        if rows_again != rows:
            raise FeatureError(f"{where}: `fit` gives {rows} rows, then {rows_again} for the same counts", _SAME_FIT)
        ids = ids_of_any(again, everything, rows, where)
        position = first_difference(expected, ids)
        if position is not None:
            raise FeatureError(
                f"{where}: after `fit`, the value {shorten(everything[position].as_py())} has the id "
                f"{expected[position]}; after another `fit` on the same counts in another order, {ids[position]}",
                _SAME_FIT,
            )


def _check_alone(encoder: Encoder, values: pa.Array, ids: Ids, rows: int, where: str) -> None:
    """Compares the ids of some values with those that they get alone; also encodes no values at all."""
    ids_of_any(encoder, values.slice(0, 0), rows, where)
    for position in range(0, len(values), max(1, len(values) // _ALONE)):
        alone = ids_of_any(encoder, values.slice(position, 1), rows, where)[0]
        if not np.array_equal(alone, ids[position]):
            raise FeatureError(
                f"{where}: `transform` gives the value {shorten(values[position].as_py())} the id {ids[position]} "
                f"among others and {alone} alone",
                ONE_VALUE_ONE_ID,
            )


def _check_unknown(encoder: Encoder, values: pa.Array, ids: Ids, rows: int, where: str) -> None:
    """Checks that values that did not occur have ids in ``unknown_rows``, unless that is empty."""
    unknown_rows = checked_unknown_rows(encoder, rows, where)
    if not unknown_rows:
        return
    outside = np.flatnonzero((ids < unknown_rows.start) | (ids >= unknown_rows.stop))
    if len(outside):
        raise FeatureError(
            f"{where}: the value {shorten(values[int(outside[0])].as_py())} did not occur; its id {ids[outside[0]]} is "
            f"not in `unknown_rows`, {unknown_rows}",
            "let `unknown_rows` be the range of all rows that such values have, or range(0) if they are not apart",
        )


def _saved_and_restored(config: EncoderSettings, encoder: Encoder, folder: Path, where: str) -> Encoder:
    checked_state(encoder, where)
    folder.mkdir()
    save_encoder(folder, "checked", encoder, config)
    try:
        return load_encoder(folder, "checked", config=type(config))
    except DataError as error:
        raise FeatureError(f"{where}: its saved state cannot be read back: {error.problem}", SAVE_ALL) from error


def _compare_files(first: Path, second: Path, where: str) -> None:
    before, after = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in (first, second))
    if before != after:
        raise FeatureError(
            f"{where}: the restored encoder's `to_state` is not the one that it was restored from",
            "let `to_state` return the same values and arrays for equal encoders, in the same order",
        )

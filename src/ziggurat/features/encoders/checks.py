"""Checks what an encoder returns, where it is called: the encoder itself, its rows, its ids and its state.

An encoder may be from outside the package, so a mistake in it becomes an error that names the table, the encoder, the
value and the id, before anything wrong is written or looked up.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Mapping
from typing import Any, cast

import numpy as np
import pyarrow as pa

from ziggurat.core.errors import FeatureError, shorten
from ziggurat.core.outside.failures import called
from ziggurat.core.untrusted import MAX_DEPTH
from ziggurat.features.encoders.encoder import Encoder, EncoderSettings, Ids, ProxyVectors, State, ValueCounts

MOST_ROWS = 2**62
RESERVED = ("import", "import_version", "import_ids")
"""The JSON keys that are saved beside the state of an encoder from outside the package."""

_MEMBERS = ("rows", "unknown_rows", "transform", "to_state")
_DTYPES = ("bool", *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)))
_ARRAY_DTYPES = (*_DTYPES, "float16", "float32", "float64")
_NO_COUNTS = "correct that code; as its Config has counts_values = False, `fit` gets None in place of counts"
_EACH_ONE_ID = "let `transform` return an array of dtype int64 with one id for each value, in their order"
_IN_TABLE = (
    "let `transform` return a row of the table for every value, also for one that did not occur in training; if ids "
    "change, raise `version` in its Config, prepare and train again"
)
_FIT = "let `fit` return the fitted encoder: an object with rows, unknown_rows, transform and to_state"
_ROWS = "let `rows` be a property that returns the number of rows, and `unknown_rows` one that returns a range of them"
_STATE = "let `to_state` return ({…}, {…}): values for JSON, and numpy arrays of numbers, each with a text as its key"


def encoder_label(table: str, config: EncoderSettings) -> str:
    """Returns what messages call the encoder of a table: ``table 'user': encoder my_package:MyEncoder``."""
    return f"table {table!r}: encoder {config.title}"


def fitted_encoder(
    config: EncoderSettings,
    counts: ValueCounts | None,
    where: str,
    proxy: ProxyVectors | None = None,
    previous: Encoder | None = None,
) -> tuple[Encoder, Ids | None]:
    """Fits an encoder.

    Args:
        config: its config.
        counts: the counts of the values; None if it counts none.
        where: the encoder, for messages.
        proxy: the vectors of the values, if it asks for a proxy.
        previous: the encoder that it continues, if it asks for one.

    Returns:
        The encoder, and the ids (n,) of the counted values if fitting has found them.

    Raises:
        FeatureError: `fit` returned something else.
        PartFailed: an encoder from outside the package raised an exception of its own.
    """
    if config.reference is not None and (config.codes != 1 or config.proxy is not None):
        raise FeatureError(f"{where}: asks for several codes, or for a proxy, which only built-in encoders can", _FIT)
    if proxy is not None:
        assert counts is not None
        found, ids = config.fit_with_proxy(counts, proxy, previous)
        return checked_encoder(found, where), ids
    fit = functools.partial(_fit, config, counts)
    hint = "" if config.counts_values else _NO_COUNTS
    found, ids = fit() if config.reference is None else called(where, "`fit`", fit, defined=config.fit, hint=hint)
    return checked_encoder(found, where), ids


def _fit(config: EncoderSettings, counts: ValueCounts | None) -> tuple[Encoder, Ids | None]:
    return config.fit_with_ids(counts) if counts is not None else (config.fit(None), None)


def encode_values(encoder: Encoder, values: pa.Array, rows: int, config: EncoderSettings, where: str) -> Ids:
    """Returns the ids that an encoder gives to values (n,): (n,), or (n, codes) if a value can have several.

    Args:
        encoder: the encoder.
        values: the values.
        rows: its number of rows.
        config: its config.
        where: the encoder, for messages.

    Raises:
        FeatureError: they are not whole numbers in ``[0, rows)``.
        PartFailed: an encoder from outside the package raised an exception of its own.
    """
    transform = functools.partial(encoder.transform, values)
    if config.reference is None:
        return checked_ids(transform(), values, rows, where, config.codes)
    defined = getattr(type(encoder), "transform", None)
    return checked_ids(called(where, "`transform`", transform, defined=defined), values, rows, where, 1)


def checked_encoder(found: Any, where: str, source: str = "fit") -> Encoder:
    """Returns ``found`` if it has the members of an encoder.

    Args:
        found: what was returned.
        where: the encoder, for messages.
        source: the method that returned it.

    Raises:
        FeatureError: it has not.
    """
    missing = object()
    lacking = [name for name in _MEMBERS if inspect.getattr_static(found, name, missing) is missing]
    if isinstance(found, type):
        raise FeatureError(f"{where}: `{source}` returned the class {found.__qualname__}, not an object of it", _FIT)
    if lacking:
        raise FeatureError(f"{where}: `{source}` returned {shorten(found)}, which lacks {', '.join(lacking)}", _FIT)
    return cast("Encoder", found)


def checked_rows(encoder: Encoder, where: str) -> int:
    """Returns the encoder's number of rows.

    Raises:
        FeatureError: it is no whole number, or not from 1 to 2^62.
    """
    rows: Any = encoder.rows
    if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or not 1 <= rows <= MOST_ROWS:
        raise FeatureError(f"{where}: `rows` is {shorten(rows)}; expected a whole number from 1 to 2^62", _ROWS)
    return int(rows)


def checked_unknown_rows(encoder: Encoder, rows: int, where: str) -> range:
    """Returns the encoder's rows of unknown values.

    Raises:
        FeatureError: they are no range of consecutive rows of the table.
    """
    unknown: Any = encoder.unknown_rows
    fits = isinstance(unknown, range) and (
        not unknown or (unknown.step == 1 and unknown[0] >= 0 and unknown[-1] < rows)
    )
    if not fits:
        raise FeatureError(
            f"{where}: `unknown_rows` is {shorten(unknown)}; expected consecutive rows of range({rows}), or range(0)",
            _ROWS,
        )
    return unknown


def checked_ids(ids: Any, values: pa.Array, rows: int, where: str, codes: int | None = None) -> Ids:
    """Returns, as int64, the ids that an encoder gave to ``values``.

    Args:
        ids: what ``transform`` returned.
        values: the values (n,) that it was given.
        rows: the encoder's number of rows.
        where: the encoder, for messages.
        codes: the most ids of a value: above 1, ids are (n, codes) with -1 for none; None: either.

    Raises:
        FeatureError: they are not whole numbers in ``[0, rows)``, one or more for each value.
    """
    expected = f"expected a numpy array of {len(values):,} whole numbers, one for each value"
    if not isinstance(ids, np.ndarray):
        raise FeatureError(
            f"{where}: `transform` returned {shorten(ids)} ({type(ids).__name__}); {expected}", _EACH_ONE_ID
        )
    found = cast("np.ndarray[Any, np.dtype[Any]]", ids)
    if found.dtype.kind not in "iu":
        raise FeatureError(f"{where}: `transform` returned numbers of dtype {found.dtype}; {expected}", _EACH_ONE_ID)
    single = found.ndim == 1 if codes is None else codes == 1
    if found.shape != ((len(values),) if single else (len(values), found.shape[-1] if codes is None else codes)):
        raise FeatureError(f"{where}: `transform` returned an array of shape {found.shape}; {expected}", _EACH_ONE_ID)
    lowest = found.min(initial=0) if single else found.max(axis=1, initial=-1).min(initial=0)
    if lowest < 0 or found.max(initial=0) >= rows or found.min(initial=0) < -1:
        wrong = (found < 0) | (found >= rows)
        position = int(np.flatnonzero(wrong if single else wrong.any(axis=1))[0])
        value = shorten(values[position].as_py())
        raise FeatureError(
            f"{where}: `transform` gives the value {value} the id {found[position]}; allowed are 0 to {rows - 1:,} "
            f"(`rows` is {rows:,})",
            _IN_TABLE,
        )
    return found.astype(np.int64, copy=False)


def checked_state(encoder: Encoder, where: str) -> State:
    """Returns the encoder's state.

    Raises:
        FeatureError: JSON or safetensors cannot hold it.
    """
    state: Any = encoder.to_state()
    if not isinstance(state, tuple) or len(cast("tuple[Any, ...]", state)) != 2:
        raise FeatureError(f"{where}: `to_state` returned {shorten(state)}, which is no pair", _STATE)
    figures, arrays = cast("tuple[Any, Any]", state)
    if not isinstance(figures, dict) or not isinstance(arrays, Mapping):
        raise FeatureError(
            f"{where}: `to_state` returned a {type(figures).__name__} and a {type(arrays).__name__}, not two dicts",
            _STATE,
        )
    taken = [name for name in RESERVED if name in figures]
    if taken:
        raise FeatureError(
            f"{where}: `to_state` uses the key {taken[0]!r}, which is ziggurat's own", "rename it in `to_state`"
        )
    fault = _json_fault(figures, "")
    if fault is not None:
        raise FeatureError(f"{where}: `to_state`: {fault}", _STATE)
    return cast("dict[str, Any]", figures), {
        name: _checked_array(name, array, where) for name, array in cast("Mapping[Any, Any]", arrays).items()
    }


def _checked_array(name: Any, array: Any, where: str) -> np.ndarray[Any, np.dtype[Any]]:
    if not isinstance(name, str) or name == "__metadata__":
        raise FeatureError(f"{where}: `to_state`: an array has the key {shorten(name)}", _STATE)
    if not isinstance(array, np.ndarray):
        raise FeatureError(f"{where}: `to_state`: {name!r} is {shorten(array)}, which is no numpy array", _STATE)
    found = cast("np.ndarray[Any, np.dtype[Any]]", array)
    if found.dtype.name not in _ARRAY_DTYPES:
        raise FeatureError(
            f"{where}: `to_state`: the array {name!r} has dtype {found.dtype}; allowed: {', '.join(_ARRAY_DTYPES)}",
            _STATE,
        )
    return np.asarray(found, order="C")


def _json_fault(value: Any, path: str, depth: int = 0) -> str | None:
    """Returns why JSON cannot hold a value unchanged; None if it can. Tuples become lists."""
    if depth > MAX_DEPTH:
        return f"{path} is nested deeper than {MAX_DEPTH} levels"
    match value:
        case None | bool() | int():
            return None
        case float():
            return None if math.isfinite(value) else f"{path} is {value}, which JSON cannot hold"
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return f"{path} is {shorten(value)}, which is no complete text"
            return None
        case list() | tuple():
            items = enumerate(cast("list[Any]", value))
            faults = (_json_fault(item, f"{path}[{number}]", depth + 1) for number, item in items)
            return next((fault for fault in faults if fault is not None), None)
        case dict():
            for key, item in cast("dict[Any, Any]", value).items():
                if not isinstance(key, str):
                    return f"{path or 'it'} has the key {shorten(key)}; JSON has texts as keys"
                fault = _json_fault(key, f"a key of {path or 'it'}") or _json_fault(item, f"{path}[{key!r}]", depth + 1)
                if fault is not None:
                    return fault
            return None
        case _:
            return f"{path} is {shorten(value)} ({type(value).__name__}), which JSON cannot hold"

"""Requests in JSON: bounded in rows and nesting, and refused with what is allowed in place of what was received."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from ziggurat.core.errors import nearest, shorten
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused

Record = dict[str, Any]
_Value = str | int | float | bool | None
_Plain = dict[str, _Value | list[_Value]]
_OTHER_TYPE = "Expected `object`, got "
_OBJECT = "a JSON object is expected"
_WORDS = {
    "`array`": "an array",
    "`str`": "a text",
    "`int`": "a number",
    "`float`": "a number",
    "`bool`": "a truth value",
}


class _PlainPredict(msgspec.Struct, forbid_unknown_fields=True):
    """What nearly all requests are: decoded with its types, no value needs to be looked at."""

    rows: list[_Plain]
    deadline_ms: float | None = None


class _PlainRank(msgspec.Struct, forbid_unknown_fields=True):
    candidates: list[_Plain]
    context: _Plain = {}
    label: str | None = None
    top: int | None = None
    deadline_ms: float | None = None


@functools.lru_cache(8)
def _decoder(depth: int) -> msgspec.json.Decoder[Record]:
    """Returns what decodes an object, and refuses more lists and objects in each other as it reads them."""
    kind: Any = _Value
    for _ in range(depth - 1):
        kind = _Value | list[kind] | dict[str, kind]
    return msgspec.json.Decoder(dict[str, kind])


_PREDICT, _RANK = msgspec.json.Decoder(_PlainPredict), msgspec.json.Decoder(_PlainRank)


@dataclass(frozen=True, slots=True)
class PredictBody:
    """The body of a request to predict.

    Attributes:
        rows: the rows.
        deadline_ms: in how many milliseconds it must be answered; None: as the server says.
        plain: whether all values are strings, numbers, truth values, null, or lists of those.
    """

    rows: list[Record]
    deadline_ms: float | None
    plain: bool = False


@dataclass(frozen=True, slots=True)
class RankBody:
    """The body of a request to rank.

    Attributes:
        context: the columns that all candidates share.
        candidates: the other columns of each.
        label: the label by which they are ranked; None: the first.
        top: how many are returned; None: all.
        deadline_ms, plain: as in :class:`PredictBody`.
    """

    context: Record
    candidates: list[Record]
    label: str | None
    top: int | None
    deadline_ms: float | None
    plain: bool = False


def parse(data: bytes | memoryview, limits: ServingLimits) -> Record:
    """Returns the JSON object in a body.

    Raises:
        HttpRefused: it is none, or is nested too deep.
    """
    try:
        return _decoder(limits.depth).decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        message = str(error)
        if message.startswith(_OTHER_TYPE):  # values may be of any type but too deep ones
            received = message.removeprefix(_OTHER_TYPE)
            raise HttpRefused(400, "invalid_json", f"the body is {_WORDS.get(received, received)}; {_OBJECT}") from None
        if message.startswith("Expected"):
            raise _too_deep(limits) from None
        raise HttpRefused(400, "invalid_json", f"the body is not valid JSON: {message}", "send a JSON object") from None


def predict_body(data: bytes, limits: ServingLimits) -> PredictBody:
    """Parses ``{"rows": [{column: value, …}, …]}``.

    Raises:
        HttpRefused: it is something else, or has too many rows.
    """
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # said below
        plain = _PREDICT.decode(data)
        check_rows(len(plain.rows), "rows", limits)
        if _is_deadline(plain.deadline_ms):
            return PredictBody(cast("list[Record]", plain.rows), plain.deadline_ms, True)
    found = parse(data, limits)
    check_fields(found, ("rows", "deadline_ms"))
    return PredictBody(_records(found, "rows", limits), _deadline(found))


def rank_body(data: bytes, limits: ServingLimits) -> RankBody:
    """Parses ``{"context": {column: value, …}, "candidates": [{column: value, …}, …]}``.

    Raises:
        HttpRefused: it is something else, or has too many candidates.
    """
    with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # said below
        plain = _RANK.decode(data)
        top, deadline_ms = plain.top, plain.deadline_ms
        check_rows(len(plain.candidates), "candidates", limits)
        if _is_deadline(deadline_ms) and (top is None or top > 0):
            candidates = cast("list[Record]", plain.candidates)
            return RankBody(cast("Record", plain.context), candidates, plain.label, top, deadline_ms, True)
    found = parse(data, limits)
    check_fields(found, ("context", "candidates", "label", "top", "deadline_ms"))
    context = found.get("context", {})
    if not isinstance(context, dict):
        raise wrong_field("context", context, "an object of the columns that all candidates share")
    label, top = found.get("label"), found.get("top")
    if label is not None and not isinstance(label, str):
        raise wrong_field("label", label, "the name of a label")
    if top is not None and (not isinstance(top, int) or isinstance(top, bool) or top < 1):
        raise wrong_field("top", top, "a whole number from 1")
    return RankBody(cast("Record", context), _records(found, "candidates", limits), label, top, _deadline(found))


def check_fields(found: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    """Refuses fields that are not known.

    Raises:
        HttpRefused: there is one.
    """
    for name in found:
        if name not in allowed:
            close = nearest(name, allowed)
            hint = (
                f"did you mean {close!r}? allowed: {', '.join(allowed)}" if close else f"allowed: {', '.join(allowed)}"
            )
            raise HttpRefused(422, "unknown_field", f"there is no field {shorten(name)}", hint)


def check_rows(count: int, place: str, limits: ServingLimits) -> None:
    """Refuses more rows than are allowed, and none.

    Raises:
        HttpRefused: so it is.
    """
    if not count:
        raise HttpRefused(422, "no_rows", f"{place}: holds no rows", "send at least one")
    if count > limits.rows:
        raise HttpRefused(
            413,
            "too_many_rows",
            f"{place}: holds {count:,} rows; {limits.rows:,} are allowed",
            "send them in several requests, or start the server with a larger --max-rows",
        )


def wrong_field(name: str, received: Any, allowed: str) -> HttpRefused:
    """Returns the refusal of a field of another type."""
    shown = "null" if received is None else shorten(received)
    return HttpRefused(422, "invalid_field", f"{name}: received {shown}; expected {allowed}")


def _records(found: Mapping[str, Any], name: str, limits: ServingLimits) -> list[Record]:
    if name not in found:
        raise HttpRefused(422, "missing_field", f"the body has no field {name!r}", f'send {{"{name}": [{{…}}, …]}}')
    rows = found[name]
    if not isinstance(rows, list):
        raise wrong_field(name, rows, "an array of objects, one for each row")
    check_rows(len(cast("list[Any]", rows)), name, limits)
    for number, row in enumerate(cast("list[Any]", rows)):
        if not isinstance(row, dict):
            raise wrong_field(f"{name}[{number}]", row, "an object: column → value")
    return cast("list[Record]", rows)


def _deadline(found: Mapping[str, Any]) -> float | None:
    value = found.get("deadline_ms")
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise wrong_field("deadline_ms", value, "a number of milliseconds above 0")
    return float(min(value, 1e9))


def _is_deadline(value: float | None) -> bool:
    return value is None or 0 < value <= 1e9


def _too_deep(limits: ServingLimits) -> HttpRefused:
    return HttpRefused(
        400, "too_deep", f"the body is nested deeper than {limits.depth} lists and objects in each other"
    )

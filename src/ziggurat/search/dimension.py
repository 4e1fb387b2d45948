"""The values that a searched key may take: an interval, linear or logarithmic, or a list.

A value is kept in the study as one number, so that the sampler sees the order of the values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from ziggurat.core.errors import ConfigError, shorten

if TYPE_CHECKING:
    from optuna.trial import Trial

_FORMS = "{log: [LOW, HIGH]}, {log: [LOW, HIGH], or: VALUE}, {range: [LOW, HIGH]}, or a list of two values or more"
_INNER = 4
"""Whole numbers less than so many above the least one are tried: a key that goes in steps refuses the first of them."""
OFF_DECADES = 1.0
"""The width in the study, in powers of ten, of the value that ``or`` adds below a logarithmic interval."""


def as_text(value: Any) -> str:
    """Writes a setting, so that equal ones are written alike: 0 and 0.0 are one number, false and 0 are not."""
    return json.dumps(_by_value(value), sort_keys=True)


def _by_value(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list | tuple):
        return [_by_value(each) for each in cast("Sequence[Any]", value)]
    if isinstance(value, dict):
        return {key: _by_value(each) for key, each in cast("dict[str, Any]", value).items()}
    return value


@dataclass(frozen=True, slots=True)
class Interval:
    """Numbers from ``low`` to ``high``; whole ones if both bounds are whole numbers.

    Attributes:
        low: the least value.
        high: the greatest value.
        log: whether equal ratios are equally likely, instead of equal differences.
        beside: a list with one further value, such as 0 or null, or an empty one. In a study it lies one power of ten
            wide below ``low``.
    """

    low: float
    high: float
    log: bool = False
    beside: tuple[Any, ...] = ()

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int) and isinstance(self.high, int)

    @property
    def ends(self) -> list[Any]:
        """The values at which a config is checked before the search."""
        return [self.low, self.high, *self.beside]

    @property
    def inner(self) -> list[int]:
        """Whole numbers inside, which a key that goes in steps would not take; none of another interval."""
        if not self.is_whole:
            return []
        low, high = int(self.low), int(self.high)
        return list(range(low + 1, min(low + _INNER, high)))

    @property
    def count(self) -> int | None:
        """The number of values; None if there is no end of them."""
        return int(self.high) - int(self.low) + 1 + len(self.beside) if self.is_whole else None

    def suggest(self, trial: Trial, key: str) -> Any:
        """Returns the value that the study's sampler chooses."""
        if not self.beside:
            if self.is_whole:
                return trial.suggest_int(key, cast("int", self.low), cast("int", self.high), log=self.log)
            return trial.suggest_float(key, self.low, self.high, log=self.log)
        number = trial.suggest_float(key, self.low / 10**OFF_DECADES, self.high, log=True)
        if number < self.low:
            return self.beside[0]
        return round(number) if self.is_whole else number

    def number(self, value: Any) -> float | None:
        """Returns the number that stands for ``value`` in the study; None if the value is not in the interval."""
        if self.beside and value == self.beside[0] and type(value) is not bool:
            return self.low / 10 ** (OFF_DECADES / 2)
        if isinstance(value, bool | str) or not isinstance(value, int | float) or not self.low <= value <= self.high:
            return None
        if not self.is_whole:
            return value
        return int(value) if value == int(value) else None

    def place(self, value: Any) -> float | None:
        """Returns where ``value`` lies between the least and the greatest, from 0 to 1; None if it is outside."""
        number = self.number(value)
        if number is None:
            return None
        low = self.low / 10**OFF_DECADES if self.beside else self.low
        if self.log:
            return math.log(number / low) / math.log(self.high / low)
        return (number - low) / (self.high - low)

    def to_json(self) -> dict[str, Any]:
        kind = "log" if self.log else "range"
        return {kind: [self.low, self.high], **({"or": self.beside[0]} if self.beside else {})}


@dataclass(frozen=True, slots=True)
class Choice:
    """A list of values. Numbers, and lists of numbers, are taken to be in order."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> list[Any]:
        return list(self.values)

    @property
    def inner(self) -> list[int]:
        return []

    @property
    def count(self) -> int:
        return len(self.values)

    @property
    def is_ordered(self) -> bool:
        return not any(isinstance(value, bool | str | dict) for value in self.values)

    def suggest(self, trial: Trial, key: str) -> Any:
        """Returns the value that the study's sampler chooses."""
        if self.is_ordered:
            return self.values[trial.suggest_int(key, 0, len(self.values) - 1)]
        return json.loads(trial.suggest_categorical(key, [json.dumps(value) for value in self.values]))

    def number(self, value: Any) -> float | str | None:
        """Returns what stands for ``value`` in the study; None if it is not in the list."""
        at = self._index(value)
        return at if at is None or self.is_ordered else json.dumps(self.values[at])

    def place(self, value: Any) -> float | None:
        """Returns where ``value`` lies in the list, from 0 to 1; None if it is not there."""
        at = self._index(value)
        return None if at is None else at / (len(self.values) - 1)

    def to_json(self) -> list[Any]:
        return list(self.values)

    def _index(self, value: Any) -> int | None:
        written = [as_text(each) for each in self.values]
        return written.index(as_text(value)) if as_text(value) in written else None


Dimension = Interval | Choice


def dimension_of(given: Any, where: str) -> Dimension:
    """Returns the values that a written dimension stands for.

    Args:
        given: ``{log: [LOW, HIGH]}``, with ``or: VALUE`` for one more value; ``{range: [LOW, HIGH]}``; or a list.
        where: the file and the key, for messages.

    Raises:
        ConfigError: it is none of these, or no interval.
    """
    if isinstance(given, list):
        values = cast("list[Any]", given)
        if len(values) < 2 or len({as_text(value) for value in values}) < len(values):
            raise ConfigError(f"{where}: received {shorten(given)}", f"write {_FORMS}, each value once")
        return Choice(tuple(values))
    if not isinstance(given, dict):
        raise ConfigError(f"{where}: received {shorten(given)}", f"write {_FORMS}")
    keys = cast("dict[str, Any]", given)
    kinds: list[Literal["log", "range"]] = [kind for kind in ("log", "range") if kind in keys]
    if len(kinds) != 1 or set(keys) - {*kinds, "or"} or ("or" in keys and kinds != ["log"]):
        raise ConfigError(f"{where}: received {shorten(given)}", f"write {_FORMS}")
    bounds = keys[kinds[0]]
    if not _are_bounds(bounds):
        raise ConfigError(f"{where}: received {shorten(given)}", "give two finite numbers, the smaller one first")
    low, high = bounds
    if kinds == ["log"] and low <= 0:
        raise ConfigError(
            f"{where}: a logarithmic interval begins above 0, received {shorten(low)}",
            f"begin it above 0; with `or: {low}` beside log, {low} is a value, too",
        )
    return Interval(low, high, kinds == ["log"], (keys["or"],) if "or" in keys else ())


def _are_bounds(bounds: Any) -> bool:
    if not isinstance(bounds, list) or len(cast("list[Any]", bounds)) != 2:
        return False
    pair = cast("Sequence[Any]", bounds)
    numbers = all(isinstance(each, int | float) and not isinstance(each, bool) for each in pair)
    return numbers and all(math.isfinite(each) for each in pair) and pair[0] < pair[1]

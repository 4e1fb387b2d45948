"""Errors a user can act on: what was received, what is allowed, how to fix it.

Everything raised for the user's own input derives from :class:`ZigguratError`; the command line prints it without a
traceback. A bug of ours stays an ``AssertionError`` and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Generator, Iterable


class ZigguratError(ValueError):
    """An input, a config or a machine that cannot be worked with.

    Args:
        problem: what is wrong and what was received, naming file, row, column, feature, id or rank.
        hint: what the user can do about it, as an imperative sentence.
    """

    def __init__(self, problem: str, hint: str = "") -> None:
        self.problem = problem
        self.hint = hint
        super().__init__(problem if not hint else f"{problem}\n  hint: {hint}")

    def __reduce__(self) -> tuple[type[ZigguratError], tuple[str, ...]]:
        return type(self), (self.problem, self.hint)


class ConfigError(ZigguratError):
    """A config file or ``--set`` that is unknown, mistyped or contradictory."""


class InvalidSection(ConfigError):
    """A section of a config that is well-formed, and cannot be built on the features or sizes around it.

    Args:
        key: where in the section the fault lies, dotted; empty where it is the whole section's.
        fault: what is wrong.
        hint: as in :class:`ZigguratError`.
    """

    def __init__(self, key: str, fault: str, hint: str = "") -> None:
        self.key, self.fault = key, fault
        super().__init__(f"{key}: {fault}" if key else fault, hint)

    def __reduce__(self) -> tuple[type[InvalidSection], tuple[str, ...]]:
        return type(self), (self.key, self.fault, self.hint)


@contextlib.contextmanager
def within(key: str) -> Generator[None]:
    """Where a section is built, have what is wrong below it say that it lies in ``key``.

    Raises:
        InvalidSection: in place of a :class:`ConfigError`, the key in front of its own.
    """
    try:
        yield
    except InvalidSection as error:
        raise InvalidSection(f"{key}.{error.key}" if error.key else key, error.fault, error.hint) from None
    except ConfigError as error:
        raise InvalidSection(key, error.problem, error.hint) from None


class DataError(ZigguratError):
    """Raw logs or a prepared dataset that cannot be read as declared."""


class FeatureError(ZigguratError):
    """A value that an encoder cannot turn into an id or a float."""


class RunFolderError(ZigguratError):
    """A run folder that is missing, incomplete, or of another config or version."""


class DivergedError(ZigguratError):
    """A training whose loss is no longer a number."""


class EnvironmentMismatch(ZigguratError):
    """Libraries or hardware that cannot do what was asked."""


class OutOfMemory(ZigguratError):
    """Memory of this machine or device that was asked for and is not there."""


class LostRank(ZigguratError):
    """Another rank is gone, stuck or has failed; the cause is told there."""


class ReadersLost(ZigguratError):
    """Readers of an ingestion tier that no longer send anything."""


class WorkersLost(ZigguratError):
    """Workers of a cluster that died again and again."""


class NoFeasiblePlan(ZigguratError):
    """Tables that the devices have no room for."""


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """The entry of ``allowed`` that looks most like ``word``, in either case; None when nothing is really close.

    A shared ending such as ``.csv`` makes no two names close: what stands before it must be so too.
    """
    by_folded = {name.casefold(): name for name in allowed}
    matches = difflib.get_close_matches(word.casefold(), by_folded, n=5, cutoff=_CLOSE)
    stem = _stem(word.casefold())
    close = (match for match in matches if difflib.SequenceMatcher(None, stem, _stem(match)).ratio() >= _CLOSE)
    return next((by_folded[match] for match in close), None)


_CLOSE = 0.65
"""The share of characters that two names must have in common, as difflib counts it."""


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def shorten(value: object, limit: int = 60) -> str:
    """``repr(value)`` cut to ``limit`` characters, for quoting received values in messages."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"

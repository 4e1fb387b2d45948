"""Errors that a user can act on: they say what was received, what is allowed and how to fix it.

Every error about the user's input derives from :class:`ZigguratError`; the command line prints it without a traceback.
A bug in ziggurat is an ``AssertionError`` and keeps its traceback.
"""

from __future__ import annotations

import contextlib
import difflib
import unicodedata
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
    """A section of a config that is well-formed but cannot be built with the given features or sizes.

    Args:
        key: dotted path, within the section, of the key at fault; empty if it is the section as a whole.
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
    """Prefixes ``key`` to the path of config errors raised in the ``with`` block, which builds the section ``key``.

    Raises:
        InvalidSection: in place of a :class:`ConfigError`.
    """
    try:
        yield
    except InvalidSection as error:
        if " " in error.key.partition(".")[0]:  # a sentence, as a ConfigError begins with
            raise InvalidSection(key, error.problem, error.hint) from None
        raise InvalidSection(f"{key}.{error.key}" if error.key else key, error.fault, error.hint) from None
    except ConfigError as error:
        raise InvalidSection(key, error.problem, error.hint) from None


class DataError(ZigguratError):
    """Raw logs or a prepared dataset that cannot be read as declared."""


class FeatureError(ZigguratError):
    """A value that an encoder cannot turn into an id or a float, or an encoder that breaks its contract."""


class RunFolderError(ZigguratError):
    """A run folder that is missing, incomplete, or of another config or version."""


class DivergedError(ZigguratError):
    """A training whose loss is no longer a number."""


class EnvironmentMismatch(ZigguratError):
    """Libraries or hardware that cannot do what was asked."""


class OutOfMemory(ZigguratError):
    """More memory was requested than this machine or device has available."""


class LostRank(ZigguratError):
    """Another rank is gone, stuck or has failed; that rank's own error states the cause."""


class ReadersLost(ZigguratError):
    """Readers of an ingestion tier that no longer respond."""


class WorkersLost(ZigguratError):
    """Workers of a cluster that died repeatedly."""


class NoFeasiblePlan(ZigguratError):
    """Tables that do not fit into the devices' memory."""


class AlreadyTraining(ZigguratError):
    """A training that was started in a process in which another one is running."""


class ForkedProcess(ZigguratError):
    """A process that was forked from one in which torch had computed: its threads are missing here."""


class PredictorClosed(ZigguratError):
    """A prediction that was asked of a closed predictor."""


def nearest(word: str, allowed: Iterable[str]) -> str | None:
    """Returns the entry of ``allowed`` most similar to ``word``, ignoring case; None if no entry is similar enough.

    A shared ending such as ``.csv`` does not make two names similar: their stems must be similar as well.
    """
    by_folded = {name.casefold(): name for name in allowed}
    matches = difflib.get_close_matches(word.casefold(), by_folded, n=5, cutoff=_CLOSE)
    stem = _stem(word.casefold())
    close = (match for match in matches if difflib.SequenceMatcher(None, stem, _stem(match)).ratio() >= _CLOSE)
    return next((by_folded[match] for match in close), None)


_CLOSE = 0.65
"""The least similarity of two names, by difflib's ratio."""


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def unknown_name(kind: str, received: object, allowed: Iterable[str]) -> ConfigError:
    """Returns the error about a name that does not exist; it names the nearest, and all that exist.

    Args:
        kind: what the name should be of, such as ``split``.
        received: the name.
        allowed: the names that exist.
    """
    names = list(allowed)
    close = nearest(str(received), names)
    hint = f"available: {', '.join(names) or 'none'}"
    return ConfigError(f"no {kind} is called {shorten(received)}", f"did you mean {close}? {hint}" if close else hint)


def shorten(value: object, limit: int = 60) -> str:
    """Returns ``repr(value)``, cut to ``limit`` characters, for quoting received values in messages."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


INVISIBLE = frozenset({"Cc", "Cf", "Cs"})
"""Unicode's categories of control characters, of those that only change how others look, and of half characters."""


def printable(text: str) -> str:
    """Returns ``text`` with control and invisible characters, except line ends, as escapes such as ``\\x1b``.

    What is printed may come from a file, and must not control the terminal.
    """
    return "".join(
        character if character == "\n" or unicodedata.category(character) not in INVISIBLE else repr(character)[1:-1]
        for character in text
    )

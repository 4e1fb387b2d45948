"""Failures of code from outside the package, shown by the files and lines of that code alone.

Such code is called by torch and by this package, so its tracebacks are long. The lines that its author can do
something about are those of their own files.
"""

from __future__ import annotations

import inspect
import linecache
import sys
import sysconfig
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import pydantic

from ziggurat.core.config_places import IMPORTED
from ziggurat.core.errors import ConfigError, ZigguratError

T = TypeVar("T")

MAX_FRAMES, MAX_CHARACTERS = 6, 600
"""How many frames and how many characters of an exception's text a message holds."""


_CORRECT = "correct that code; docs/extending.md says what each kind of part gets and returns"
_FROZEN = "a config does not change: keep values that do in the part, or use model_copy(update=…)"


class PartFailed(ConfigError):
    """A part from outside the package that raised an exception of its own."""


def called(title: str, doing: str, function: Callable[[], T], *, defined: object = None, hint: str = "") -> T:
    """Calls ``function``, which runs a part from outside the package, and returns what it returns.

    Args:
        title: the part, as messages name it.
        doing: what is called, such as ``build``.
        function: calls it.
        defined: the function that the part's author wrote; its place is shown if no line of it was reached.
        hint: what the user can do about it.

    Raises:
        PartFailed: it raised an exception that is no error of this package and no lack of memory.
    """
    try:
        return function()
    except ZigguratError:
        raise
    except Exception as error:
        if _lacks_memory(error):
            raise
        hint = _FROZEN if "Instance is frozen" in str(error) else hint
        raise PartFailed(f"{title}: {doing} raised {_with_lines(error, defined)}", hint or _CORRECT) from error


def explained_failure(error: BaseException) -> PartFailed | None:
    """Returns the error for the user if ``error`` was raised while code of an imported part ran, else None."""
    own = [frame for frame in _frames(error.__traceback__) if _root(frame[0]) in _roots()]
    if not own or isinstance(error, ZigguratError):
        return None
    who = ", ".join(_references(own)) or str(own[-1][0].f_globals.get("__name__"))
    return PartFailed(
        f"{who} raised {_with_lines(error)}",
        "correct that code; with ZIGGURAT_TRACEBACK=1 set, the whole traceback is printed",
    )


def own_lines(trace: TracebackType | None) -> list[str]:
    """Returns a line for each frame of a traceback that is neither Python's, nor an installed package's, nor ours.

    Frames of imported parts are included wherever these are installed. The outermost frame comes first; of many, the
    last :data:`MAX_FRAMES` are returned.
    """
    frames = [frame for frame in _frames(trace) if _root(frame[0]) in _roots() or not _is_library(frame[0])]
    left_out = [f"… {len(frames) - MAX_FRAMES} frames before"] if len(frames) > MAX_FRAMES else []
    return left_out + [
        _line(frame.f_code.co_filename, number, frame.f_code.co_name) for frame, number in frames[-MAX_FRAMES:]
    ]


def described(error: BaseException) -> str:
    """Returns the type of an exception and its text, shortened."""
    if isinstance(error, pydantic.ValidationError):
        problems = error.errors(include_url=False, include_context=False)
        text = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in problems)
    else:
        text = str(error).strip()
    text = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def place_of(function: object) -> str | None:
    """Returns where a function or class is defined, as ``FILE, line N``; None if that is not known."""
    try:
        file, (_, line) = inspect.getsourcefile(function), inspect.getsourcelines(function)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return None
    return f"{file}, line {line}"


def _with_lines(error: BaseException, defined: object = None) -> str:
    lines = own_lines(error.__traceback__)
    if not lines and defined is not None and (place := place_of(defined)) is not None:
        lines = [f"{place}: defined here"]
    return "\n  ".join([described(error), *lines])


def _line(file: str, number: int, name: str) -> str:
    source = linecache.getline(file, number).strip()
    return f"{file}, line {number}, in {name}" + (f": {source}" if source else "")


def _frames(trace: TracebackType | None) -> Sequence[tuple[Any, int]]:
    return [*traceback.walk_tb(trace)]


def _references(own: Sequence[tuple[Any, int]]) -> list[str]:
    """Returns the imported part that was running, as far as the frames tell: its class, or those of its module."""
    for frame, _ in reversed(own):
        module, running = frame.f_globals.get("__name__"), frame.f_locals.get("self", frame.f_locals.get("cls"))
        found = [reference for reference in IMPORTED if reference.partition(":")[0] == module]
        classes = [each.__qualname__ for each in getattr(running, "__mro__", type(running).__mro__)]
        exact = [f"{module}:{name}" for name in classes if f"{module}:{name}" in found]
        if found:
            return exact[:1] or found
    return []


def _roots() -> set[str]:
    """Returns the top-level modules of the parts that were imported."""
    return {_root_of(reference) for reference in IMPORTED}


def _root_of(reference: str) -> str:
    return reference.partition(":")[0].partition(".")[0]


def _root(frame: Any) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _is_library(frame: Any) -> bool:
    file = frame.f_code.co_filename
    return file.startswith("<") or any(Path(file).is_relative_to(folder) for folder in _LIBRARIES)


def _lacks_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or (
        type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)
    )


_PATHS = sysconfig.get_paths()
_LIBRARIES = [
    Path(__file__).parents[2],
    *(Path(_PATHS[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
    *(Path(each) for each in sys.path if each.endswith(("site-packages", "dist-packages"))),
]
"""Folders of this package, of Python's own modules, and of installed packages."""

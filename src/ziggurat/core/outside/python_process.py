"""The command line of another Python process, which finds the modules that this one finds."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module as this Python would.

    ``python -m`` puts the working directory before the standard library, where a file of the user's, such as
    ``queue.py``, would take the place of a module. It does so only if this process looks there, too: as one that was
    started by ``python -m`` itself, whose models may be there.
    """
    looks_here = any(path == "" or os.path.realpath(path) == str(Path.cwd()) for path in sys.path)
    return [sys.executable, *([] if looks_here else ["-P"]), "-m", module, *arguments]

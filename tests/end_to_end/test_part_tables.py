"""The tables of built-in parts in docs/models.md agree with the lists in the code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_are_current() -> None:
    command = [sys.executable, str(ROOT / "tools" / "part_tables.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, "run `python tools/part_tables.py`" + done.stderr

"""pyarrow's compute functions, typed ``Any``: pyarrow defines them at run time, so type checkers cannot see them."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute

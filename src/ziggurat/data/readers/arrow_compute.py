"""pyarrow's compute functions. It defines them at run time, out of a type checker's sight, hence the ``Any``."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute

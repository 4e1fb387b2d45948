"""One thread for each of pytest's processes and of those that they start: more threads than cores wait for one another
in busy loops, which makes the whole several times slower.
"""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

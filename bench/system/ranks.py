"""Starts N ranks of a measured module with one thread each: `python -m bench.system.ranks N MODULE FOLDER`.

The first rank implements the protocol with the benchmark (`peers/protocol.py`); the others follow it.
"""

from __future__ import annotations

import os
import runpy
import sys

from ziggurat.parallel.launch import launch


def main() -> int:
    ranks, module, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    os.environ["OMP_NUM_THREADS"] = "1"
    status = launch([sys.executable, "-m", module, folder], ranks)
    if status is None:  # this process is a rank
        sys.argv = [module, folder]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return 0
    return status


if __name__ == "__main__":
    sys.exit(main())

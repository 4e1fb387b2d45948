"""Runs every benchmark once, quickly, two at a time.

Each runs in a process of its own, a fork of one that has imported the engine: importing it takes longer than most quick
runs. So are the Python modules that it starts (:mod:`bench.forked_modules`). Each process has one thread, as the two
benchmarks share the machine.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_A_TIME = 2
PRELOADED = [
    "bench.catalogue",
    "torchrec",
    "pandas",
    "ziggurat.training.loop",
    "ziggurat.training.api",
    "ziggurat.cli.main",
]
LONGEST = (
    "autoshard", "quantised_comms", "lab_collectives", "cost_network", "pipeline_overlap", "dmt", "soak", "scaling_law",
    "hostile", "checkpoint_crash", "damage", "ingestion", "prepare",
    "predict_speed", "serving_soak", "serving_hostile", "serving_peers", "serving_sdm", "serving_power",
)  # fmt: skip
"""The benchmarks that begin first, so that no long one is left for the end, when the other processor is idle."""


def smoke(names: Sequence[str]) -> int:
    """Runs the benchmarks and prints what each one wrote when it has ended. Returns 0 if all ended well, else 1."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    names = sorted(names, key=lambda name: LONGEST.index(name) if name in LONGEST else len(LONGEST))

    def run(name: str) -> tuple[int, float, str]:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="ziggurat-smoke-") as folder:
            output = Path(folder) / "output"
            process = context.Process(target=_run, args=(name, str(output)))
            process.start()
            process.join()
            return process.exitcode or 0, time.monotonic() - started, output.read_text(encoding="utf-8")

    failed: list[str] = []
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        for name, (status, seconds, output) in zip(names, pool.map(run, names), strict=True):
            print(f"{output}{name}: took {seconds:.0f} s", flush=True)
            if status:
                failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _run(name: str, output: str) -> None:
    from bench.cli import main
    from bench.forked_modules import start_modules_by_forks

    start_modules_by_forks()
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    sys.stdout, sys.stderr = (open(each, "w", encoding="utf-8", closefd=False, buffering=1) for each in (1, 2))  # noqa: SIM115
    sys.exit(main(["run", name, "--quick"]))

"""Takes drawn texts and damaged files through `init`, `prepare` and the reading and writing of `predict`.

20,000 texts (tables in any form, JSON lines, bytes with the marks of both) and 2,000 damaged files of every format. A
log passes if nothing but the package's own errors comes out, `prepare` accepts what `init` writes, prepared and
quarantined rows add up to the records of the file, a prediction writes as many rows as were prepared, and each column
of an intact table is in the config. Workers are processes, so that a crash of a native library is a fault, not the end.

Nothing is timed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections import Counter
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target

TEXTS, FILES, BATCH = 20_000, 2_000, 1_000
QUICK = 40
_SECONDS = 3_600


def run(context: Context) -> Result:
    counts: Counter[str] = Counter()
    faults: list[str] = []
    wrong, examined = Counter[str](), Counter[str]()
    context.cache.mkdir(parents=True, exist_ok=True)
    for kind, total in (("texts", TEXTS), ("files", FILES)):
        total = QUICK if context.quick else total
        for first in range(0, total, BATCH):
            size = min(BATCH, total - first)
            made = _batch(kind, size, first // BATCH, context)
            counts.update({f"{kind}: {name}": count for name, count in made["counts"].items()})
            examined[kind] += size
            wrong[kind] += made["fault_count"]
            faults += [f"{each['name']}: {each['fault']}: {each['data']}" for each in made["faults"]]
            context.say(f"{kind}: {examined[kind]:,} of {total:,}, {wrong[kind]} faults")
    figures = [
        Figure(f"{kind}_held", "%", (100 * (1 - wrong[kind] / examined[kind]),), f"of {examined[kind]:,}")
        for kind in ("texts", "files")
    ]
    table = (("what became of them", "logs"), *((name, str(count)) for name, count in sorted(counts.items())))
    return Result(tuple(figures), 0, 1, tuple(faults[:30]), cases=table)


def _batch(kind: str, size: int, number: int, context: Context) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=context.cache) as folder:
        command = [sys.executable, "-m", "bench.system.fuzz_worker", kind, str(size), str(number), folder]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if ended.returncode == 0:
        return json.loads(ended.stdout.splitlines()[-1])
    fault = {"name": kind, "fault": f"status {ended.returncode}", "data": ended.stderr[-500:]}
    return {"counts": {"process ended": 1}, "faults": [fault], "fault_count": size}


FUZZ = Benchmark(
    name="fuzz",
    claim="Whatever text or damaged file is given to `init`, `prepare` and `predict`, nothing but named errors comes "
    "out, and no row or column is lost silently.",
    targets={"texts_held": Target(100.0), "files_held": Target(100.0)},
    depends_on=("bench/system/fuzz.py", "bench/system/fuzz_worker.py", "src/ziggurat/cli/init.py"),
    run=run,
)

"""Measures how fast one core reads shuffled batches of 13 dense and 26 categorical columns from an encoded dataset.

The measured process is `python -m bench.micro.loader FOLDER`. It is pinned to one core, with one torch thread and no
prefetching thread, so the figure is in rows per second and core. With a second argument, `reopen`, it opens the dataset
anew for each epoch, which then compares all blocks with their checksums.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import Contestant
from bench.measure import repeat
from bench.peers.protocol import Rounds

DENSE, CATEGORICAL = 13, 26
TABLE_ROWS = 200_000
BATCH_SIZE = 4096
BLOCK_ROWS = 65_536


def run(context: Context) -> Result:
    blocks, repeats, warmups = (2, 2, 1) if context.quick else (32, 9, 2)
    folder = context.cache / f"loader-{blocks}"
    context.say(f"generating {blocks * BLOCK_ROWS:,} encoded rows")
    write_dataset(folder, blocks)
    command = [sys.executable, "-m", "bench.micro.loader", folder]
    with Contestant("the loader", command).start() as loader:
        samples = repeat(lambda: _reported(context, loader.epoch()), warmups, repeats)
    note = f"batches of {BATCH_SIZE:,}, shuffled, created in the caller's thread on one core"
    return Result(
        (Figure("rows_per_core", "rows/s", samples, note),),
        warmups,
        repeats,
        (f"{blocks * BLOCK_ROWS:,} rows an epoch, memory-mapped Arrow in the page cache",),
    )


def _reported(context: Context, rate: float) -> float:
    context.say(f"{rate:,.0f} rows/s")
    return rate


def write_dataset(folder: Path, blocks: int) -> None:
    """Writes an encoded dataset of ``blocks`` full blocks of seeded random rows."""
    from ziggurat.core.files import atomic_folder
    from ziggurat.core.schema import Schema, label_column
    from ziggurat.data.encoded.dataset import DatasetWriter

    dense = [f"i{i}" for i in range(DENSE)]
    categorical = [f"c{i}" for i in range(CATEGORICAL)]
    schema = Schema(
        dense=tuple(dense),
        categorical=tuple(categorical),
        tables={name: name for name in categorical},
        rows=dict.fromkeys(categorical, TABLE_ROWS),
        labels=("click",),
    )
    random = np.random.default_rng(0)
    with atomic_folder(folder) as place:
        writer = DatasetWriter(place, schema, BLOCK_ROWS)
        for _ in range(blocks):
            columns = {name: pa.array(random.random(BLOCK_ROWS, np.float32)) for name in dense}
            columns |= {
                name: pa.array(random.integers(0, TABLE_ROWS, BLOCK_ROWS, dtype=np.int32)) for name in categorical
            }
            columns[label_column("click")] = pa.array(random.integers(0, 2, BLOCK_ROWS).astype(np.float32))
            writer.append("train", pa.record_batch(columns))
        writer.finish("bench", {})


def main() -> None:
    rounds = Rounds()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    import torch

    from ziggurat.data.encoded.dataset import Dataset
    from ziggurat.data.encoded.loader import Cursor, Loader

    torch.set_num_threads(1)

    def opened() -> Loader:
        dataset = Dataset(Path(sys.argv[1]))
        return Loader(dataset.split("train"), dataset.schema, BATCH_SIZE, shuffle=True, prefetch=0)

    loader, reopen = opened(), sys.argv[2:] == ["reopen"]
    rounds.ready()
    cursor = Cursor()
    while True:
        rounds.begin()
        if reopen:
            loader, cursor = opened(), Cursor()
        rows = 0
        for batch, after in loader.epoch(cursor):
            rows += batch.size
            cursor = after
        assert rows == loader.rows
        rounds.end(rows, 0.0)


LOADER = Benchmark(
    name="loader",
    claim="The loader does not starve training: it reads a million rows of 39 columns a second on one core.",
    targets={"rows_per_core": Target(1_000_000)},
    depends_on=("bench/micro/loader.py",),
    run=run,
)

if __name__ == "__main__":
    main()

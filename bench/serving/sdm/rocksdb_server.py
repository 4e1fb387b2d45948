"""A peer: the same model and the same HTTP server, with rows from RocksDB.

``python -m bench.serving.sdm.rocksdb_server OUT FOLDER CACHE_BYTES``. It prints its URL. Rows are read
with O_DIRECT through a block cache, in batches, and each row of a batch once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ziggurat.serving.artefact.manifest import TABLES, Manifest, TableEntry
from ziggurat.serving.artefact.row_codec import Precision, decode
from ziggurat.serving.http.app import application
from ziggurat.serving.http.doors import Doors
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.served_model import ServedModel
from ziggurat.serving.http.server import WorkerServer, run_worker
from ziggurat.serving.http.workers import listening_socket
from ziggurat.serving.model.scorer import Scorer
from ziggurat.serving.tables.plain_lookup import PlainLookup

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
_WRITTEN = 100_000


class RocksRows:
    """The rows of a table in RocksDB; keys are ids in big-endian, values the rows of the export."""

    def __init__(self, folder: Path, entry: TableEntry, precision: Precision, cache_bytes: int) -> None:
        from rocksdict import BlockBasedOptions, Cache, Options, Rdict

        options, blocks = Options(raw_mode=True), BlockBasedOptions()
        options.create_if_missing(True)
        blocks.set_block_cache(Cache(cache_bytes))
        blocks.set_bloom_filter(10, False)
        blocks.set_cache_index_and_filter_blocks(True)
        options.set_block_based_table_factory(blocks)
        options.set_use_direct_reads(True)
        self._entry = entry
        self._precision: Precision = precision
        self._rows: Any = Rdict(str(folder), options)

    def fill(self, path: Path) -> None:
        """Writes the rows of a table's file."""
        from rocksdict import WriteBatch

        layout = self._entry.layout(self._precision)
        mapped = np.memmap(path, np.uint8, "r")
        for start in range(0, self._entry.rows, _WRITTEN):
            ids = np.arange(start, min(start + _WRITTEN, self._entry.rows))
            batch = WriteBatch(raw_mode=True)
            for key, row in zip(_keys(ids), layout.gather(mapped, ids), strict=True):
                batch.put(key, row.tobytes())
            self._rows.write(batch)
        self._rows.flush()
        self._rows.compact_range(None, None)

    def read(self, ids_L: Ints) -> Floats:
        distinct, places = np.unique(ids_L, return_inverse=True)
        found: list[bytes] = self._rows.get(_keys(distinct))
        stored = np.frombuffer(b"".join(found), np.uint8).reshape(len(distinct), -1)
        return decode(stored, self._entry.dim, self._precision)[places]


def _keys(ids_U: Ints) -> list[bytes]:
    return [key.tobytes() for key in ids_U.astype(">i8")]


def main() -> None:
    export, folder, cache_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    manifest = Manifest.read(export)
    total = sum(entry.rows for entry in manifest.tables)
    is_new = not folder.exists()
    folder.mkdir(exist_ok=True)
    rows: dict[str, RocksRows] = {}
    for entry in manifest.tables:
        part = max(1 << 20, cache_bytes * entry.rows // total)
        rows[entry.name] = RocksRows(folder / entry.name, entry, manifest.precision, part)
        if is_new:
            rows[entry.name].fill(export / TABLES / entry.file)
    if sys.argv[4:] == ["fill"]:
        return
    scorer = Scorer.open(export, compiled=1)  # it is used where the server beside it uses it
    scorer.lookup = PlainLookup(manifest, rows)
    doors, limits = Doors(), ServingLimits()
    torch.set_num_threads(1)
    with listening_socket("127.0.0.1", 0) as found:
        url = f"http://127.0.0.1:{found.getsockname()[1]}"
        app = application(ServedModel(scorer), doors, limits)
        run_worker(WorkerServer(app, doors, limits, lambda: print(url, flush=True)), found)


if __name__ == "__main__":
    main()

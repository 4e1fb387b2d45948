"""Writes ``tests/golden/stored_export`` with the ziggurat that is imported, whose format of exports is to be kept.

    PYTHONPATH=src python tests/golden/make_export.py tests/golden/stored_export

It exports the run in ``tests/golden/stored``, and leaves in ``expected.json`` what the export predicts for its sample
rows, and the SHA-256 of each table at the other precisions.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from make_stored import processor

import ziggurat
from ziggurat.data.readers.rows_in_memory import to_arrow
from ziggurat.data.readers.table_reader import read_table
from ziggurat.serving.artefact.manifest import SAMPLE_FILE, TABLES, Manifest
from ziggurat.serving.artefact.row_codec import encode
from ziggurat.serving.model.scorer import Scorer
from ziggurat.training.run_folder.resume import environment

STORED = Path(__file__).parent / "stored"
OTHERS = ("fp16", "int8", "int4")


def copy_stored(folder: Path) -> None:
    """Copies the stored run and its log to a folder; the run says that it was trained with this engine."""
    shutil.copytree(STORED, folder)
    modified_ns = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))["modified_ns"]
    os.utime(folder / "log.csv", ns=(modified_ns, modified_ns))
    path = folder / "run" / "environment.json"
    known, here = json.loads(path.read_text(encoding="utf-8")), environment(0)
    path.write_text(json.dumps(known | {key: here[key] for key in ("ziggurat", "torch", "torchrec", "fbgemm")}))


def export_stored(folder: Path) -> Path:
    """Exports the copy of the stored run in a folder, as it was when it was stopped."""
    with contextlib.chdir(folder):
        ziggurat.export("run", "export", checkpoint="last", prepared="prepared")
    return folder / "export"


def predictions_of(export: Path) -> list[float]:
    """Returns what an export predicts for its sample rows."""
    scorer = Scorer.open(export, check_tables=True)
    rows = json.loads((export / SAMPLE_FILE).read_text(encoding="utf-8"))["rows"]
    schema = scorer.transform.raw_schema(labelled=False)
    return scorer.score(read_table(to_arrow(rows, schema), schema)).predictions_BT.reshape(-1).tolist()


def rounded_tables(export: Path) -> dict[str, dict[str, str]]:
    """Returns precision -> file -> the SHA-256 of the rows of an fp32 export at that precision."""
    found: dict[str, dict[str, str]] = {each: {} for each in OTHERS}
    for entry in Manifest.read(export).tables:
        packed = entry.layout("fp32")
        blocks = np.fromfile(export / TABLES / entry.file, np.float32).reshape(-1, packed.stride // 4)
        rows_RD = blocks[:, : packed.per_block * entry.dim].reshape(-1, entry.dim)[: entry.rows]
        for precision in OTHERS:
            file = io.BytesIO()
            entry.layout(precision).write(file, encode(rows_RD, precision, entry.name))
            found[precision][entry.file] = hashlib.sha256(file.getvalue()).hexdigest()
    return found


def machine() -> dict[str, Any]:
    """Returns what the bits of predictions and the text of a graph depend on."""
    return {"ziggurat": ziggurat.__version__, "torch": torch.__version__, "processor": processor()}


def main(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as temporary:
        copy_stored(Path(temporary) / "stored")
        shutil.copytree(export_stored(Path(temporary) / "stored"), out / "export")
    expected = machine() | {
        "predictions": predictions_of(out / "export"),
        "tables": rounded_tables(out / "export"),
    }
    (out / "expected.json").write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())

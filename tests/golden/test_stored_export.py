"""An export that was stored is read as it was, and the same run is exported to the same bytes, file by file.

Whoever changes the format of exports on purpose gives it another version, describes it in docs/export.md, leaves the
stored folder as it is to be read, and stores another one beside it with ``make_export.py``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from make_export import copy_stored, export_stored, machine, predictions_of, rounded_tables
from test_stored_formats import files_below

STORED = Path(__file__).parent / "stored_export"
EXPECTED: dict[str, Any] = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))
SAME_MACHINE = all(EXPECTED[key] == value for key, value in machine().items())
VARYING = {"dense.json", "reference.json"}
"""The graph is as PyTorch's version writes it, and validation scores have the last bits of the processor."""


def test_a_stored_export_predicts_as_it_did() -> None:
    found = predictions_of(STORED / "export")
    assert found == (EXPECTED["predictions"] if SAME_MACHINE else pytest.approx(EXPECTED["predictions"], abs=1e-6))
    assert rounded_tables(STORED / "export") == EXPECTED["tables"]


def test_the_stored_run_is_exported_to_the_stored_bytes(tmp_path: Path) -> None:
    copy_stored(tmp_path / "stored")
    ours, theirs = files_below(export_stored(tmp_path / "stored")), files_below(STORED / "export")
    assert ours.keys() == theirs.keys()
    for name in ours.keys() - VARYING - {"export.json"}:
        assert ours[name] == theirs[name], name
    if SAME_MACHINE:
        assert {name for name in ours if ours[name] != theirs[name]} == set()
    mine, stored = (described(each) for each in (ours, theirs))
    assert mine == stored
    assert ours["export.json"].startswith(b'{\n  "source": {\n    "name": "stored",\n')


def described(files: dict[str, bytes]) -> list[str]:
    """Returns the lines of ``export.json``, in their order, besides what differs between machines and versions."""
    manifest = json.loads(files["export.json"])
    del manifest["xxh3_128"], manifest["source"]["version"], manifest["source"]["torch"]
    for name in VARYING:
        del manifest["files"][name]
    return json.dumps(manifest, indent=1).splitlines()

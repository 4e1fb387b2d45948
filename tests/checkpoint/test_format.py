"""The bytes of a checkpoint match docs/checkpoints.md: they are decoded here without ziggurat's reader."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import torch
from checkpoint_kit import Table, saver

from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.checkpoint.format.manifest import Manifest

GOLDEN = Path(__file__).parent / "golden"


def safetensors(data: bytes) -> dict[str, tuple[str, list[int], bytes]]:
    """Returns name -> (dtype, shape, bytes), parsed by the description of the safetensors format."""
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body = data[8 + size :]
    return {name: (each["dtype"], each["shape"], body[slice(*each["data_offsets"])]) for name, each in header.items()}


def manifest_of(folder: Path) -> dict[str, Any]:
    whole = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    assert whole.keys() == {"format_version", "sha256", "manifest"}
    assert whole["format_version"] == 2
    text = json.dumps(whole["manifest"], sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    assert whole["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    return whole["manifest"]


def code(row: bytes, number: int, bits: int) -> int:
    return (int.from_bytes(row, "little") >> (number * bits)) & (2**bits - 1)


def test_a_delta_can_be_decoded_by_the_format_description_alone(tmp_path: Path) -> None:
    table, folder = Table(rows=50, dim=5), CheckpointFolder(tmp_path, keep=9)
    with saver(folder, table, bits=3) as saving:
        saving.save(1, {"dense/w": torch.arange(3.0)}, {"best": float("-inf")})
        table.change(4)
        saving.save(2, {"dense/w": torch.arange(3.0)}, {})
    first, second = (manifest_of(tmp_path / f"step-0000000{step}") for step in (1, 2))
    assert first["state"] == {"best": {"float": "-inf"}}
    assert (first["kind"], first["needs"]) == ("full", [])
    assert (second["kind"], second["needs"]) == ("delta", [{"step": 1, "id": first["id"]}])
    assert second["tables"] == {"item": {"rows": 50, "dim": 5, "states": {"sum": 0, "mean": 5}}}
    dense, rows = second["files"]
    data = (tmp_path / "step-00000002" / dense["name"]).read_bytes()
    assert (dense["bytes"], dense["sha256"]) == (len(data), hashlib.sha256(data).hexdigest())
    assert safetensors(data) == {"dense/w": ("F32", [3], struct.pack("<3f", 0, 1, 2))}
    (block,) = rows["blocks"]
    assert rows["name"] == f"rank-00000-00001.{second['id']}.safetensors"
    tensors = safetensors((tmp_path / "step-00000002" / rows["name"]).read_bytes())
    count = block["rows"]
    ids = struct.unpack(f"<{count}i", tensors["0.ids"][2])
    assert block == {
        "number": 0,
        "table": "item",
        "rows": count,
        "first": None,
        "low": min(ids),
        "high": max(ids),
        "columns": [0, 5],
        "bits": {"weight": 3, "sum": 32, "mean": 32},
    }
    assert tensors["0.sum.rows"] == ("F32", [count], table.sum_R[list(ids)].numpy().tobytes())
    assert tensors["0.mean.rows"] == ("F32", [count, 5], table.mean_RD[list(ids)].numpy().tobytes())
    kind, shape, codes = tensors["0.weight.codes"]
    assert (kind, shape) == ("U8", [count, 2])
    lows, steps = (struct.unpack(f"<{count}f", tensors[f"0.weight.{part}"][2]) for part in ("low", "step"))
    for place, row in enumerate(ids):
        packed = codes[2 * place : 2 * place + 2]
        for column in range(5):
            number = lows[place] + steps[place] * code(packed, column, 3)
            assert abs(number - float(table.weight_RD[row, column])) < 3 * steps[place] + 1e-6


def test_rows_without_gaps_have_no_ids(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    table = Table(rows=50, dim=5)
    with saver(folder, table) as saving:
        saving.save(1, {}, {})
    manifest = manifest_of(tmp_path / "step-00000001")
    (block,) = manifest["files"][-1]["blocks"]
    assert (block["first"], block["low"], block["high"], block["rows"]) == (0, 0, 49, 50)
    tensors = safetensors((tmp_path / "step-00000001" / manifest["files"][-1]["name"]).read_bytes())
    assert tensors.keys() == {"0.weight.rows", "0.sum.rows", "0.mean.rows"}
    assert tensors["0.weight.rows"] == ("F32", [50, 5], table.weight_RD.numpy().tobytes())


def test_a_stored_checkpoint_is_still_read() -> None:
    """The stored checkpoint was written by the first version of format 2. Code that cannot read it needs a new format
    version."""
    folder = CheckpointFolder(GOLDEN / "version-2")
    assert folder.steps() == [10, 20]
    saved = folder.load("best")
    saved.verify()
    assert saved.state == {"progression": {"step": 20, "cursor": [1, 128]}, "best": float("inf")}
    expected = json.loads((GOLDEN / "version-2.json").read_text())
    found = {
        f"{group}/{name}": tensor.tolist() for group, each in saved.groups.items() for name, tensor in each.items()
    }
    assert found == expected


def test_a_manifest_round_trips_through_json() -> None:
    folder = CheckpointFolder(GOLDEN / "version-2")
    manifest = folder.manifest(20)
    assert manifest is not None
    assert Manifest.from_bytes(manifest.to_bytes(), "here") == manifest

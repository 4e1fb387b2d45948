"""Files with a right checksum and wrong content, and files of version 1, which have none: an error that names the file.

No exception of Python's reaches the reader, whatever is missing, mistyped or out of its range.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from damage_kit import used_dataset, used_run

from ziggurat.core.errors import ZigguratError
from ziggurat.core.sealed import SEAL, sealed
from ziggurat.training.evaluate_run import evaluate
from ziggurat.training.run_folder.metrics_log import read_metrics_log
from ziggurat.training.scaling.result import ScaleResult
from ziggurat.verification.verify import verify

WRONG: list[Any] = [None, "x", -1, 2**70, 1e308, [], {}, [[]], True]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yields the path of every value in a JSON value; of a list, only of its first item."""
    items = value.items() if isinstance(value, dict) else list(enumerate(value))[:1] if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def forged(values: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields variants of a JSON object with one value missing or replaced."""
    for number, path in enumerate(places(values)):
        if path == (SEAL,):
            continue
        for wrong in [..., *WRONG[number % 3 :: 3]]:
            variant = copy.deepcopy(values)
            place: Any = variant
            for key in path[:-1]:
                place = place[key]
            if wrong is ...:
                del place[path[-1]]
            else:
                place[path[-1]] = wrong
            yield f"{path} = {wrong!r}", variant


def check(path: Path, use: Callable[[], Any], values: dict[str, Any], seal: bool) -> int:
    """Forges a file in every way; returns how many of them were refused."""
    without_hint: list[str] = []
    refused = 0
    for case, variant in forged(values):
        path.write_text(json.dumps(sealed(variant) if seal else variant))
        try:
            use()
        except ZigguratError as error:
            refused += 1
            without_hint += [] if error.hint else [f"{case}: {error.problem}"]
        except Exception as error:
            raise AssertionError(f"{path.name}: {case}") from error
    assert not without_hint
    return refused


def older(folder: Path) -> None:
    """Makes a dataset or run of version 1 of one of version 2: the same content without any checksum."""
    for path in folder.rglob("*.json"):
        if "checkpoints" in path.parts:
            continue
        values = json.loads(path.read_text())
        for key in (SEAL, "checksums", "accesses", "run_id" if path.name != "environment.json" else SEAL):
            values.pop(key, None)
        if path.name == "transform.json":
            values.pop("files")
        for key in ("version", "format_version", "run_version"):
            if key in values and path.name not in {"plan.json"} and not path.name.startswith("table."):
                values[key] = 1
        if path.name == "dataset.json":
            values.pop("encoders")
        if path.name == "baselines.json":
            values = values["baselines"]
        for split in values.get("splits", {}).values():
            for file in split["files"]:
                file.pop("checksums")
        path.write_text(json.dumps(values))
    metrics = folder / "metrics.jsonl"
    if metrics.exists():
        records = [json.loads(line) for line in metrics.read_text().splitlines()]
        lines = [{key: value for key, value in each.items() if key not in {SEAL, "run_id"}} for each in records]
        metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        config = (folder / "config.yaml").read_text().splitlines()
        (folder / "config.yaml").write_text("\n".join(line for line in config if not line.startswith("#")) + "\n")


DATASET_FILES = ["manifest.json", "statistics.json", "encoders/transform.json", "encoders/table.item.json"]
RUN_FILES = [
    "environment.json", "dataset.json", "plan.json", "results.json", "warm_start.json", "baselines.json",
    "encoders/transform.json",
]  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("file", DATASET_FILES)
def test_a_forged_dataset(two_runs: tuple[Path, Path], tmp_path: Path, file: str, version: int) -> None:
    folder = tmp_path / "prepared"
    shutil.copytree(two_runs[0] / "prepared", folder)
    if version == 1:
        expected = used_dataset(folder)
        older(folder)
        found = used_dataset(folder)
        assert {**found, "manifest": 0} == {**expected, "manifest": 0}
        assert verify(folder).whole
    values = json.loads((folder / file).read_text())
    seal = SEAL in values
    assert check(folder / file, lambda: used_dataset(folder), values, seal) > 10


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("file", RUN_FILES)
def test_a_forged_run(two_runs: tuple[Path, Path], tmp_path: Path, file: str, version: int) -> None:
    folder = tmp_path / "run"
    shutil.copytree(two_runs[0] / "run", folder)
    if version == 1:
        expected = used_run(folder)
        older(folder)
        found = used_run(folder)
        assert {**found, "pointer": 0} == {**expected, "pointer": 0}
        assert verify(folder).whole
    values = json.loads((folder / file).read_text())
    assert check(folder / file, lambda: used_run(folder), values, SEAL in values) >= 3


CONTRADICTIONS: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "fewer rows of a table": (
        lambda m: m["schema"]["rows"].update(item=5),
        r"table 'item' has 5 rows, and \d+ in the (statistics|checkpoint)",
    ),
    "no such kind of label": (
        lambda m: m["schema"].update(kinds={"click": "rank"}),
        "schema: label 'click' is 'rank', allowed are soft, regression, ordinal",
    ),
    "another kind of label": (
        lambda m: m["schema"].update(kinds={"click": "regression"}),
        "schema: kinds is {'click': 'regression'}, and that of the transform in .*encoders is {}",
    ),
    "levels of a binary label": (lambda m: m["schema"].update(levels={"click": [1.0]}), "which is not ordinal"),
    "other inputs": (lambda m: m["schema"].update(dense=[]), r"schema: dense is \[\], and that of the transform in "),
    "no inputs": (lambda m: m["schema"].pop("dense"), "lacks schema.dense"),
    "no such feature": (lambda m: m["schema"]["tables"].update(x="item"), "a table to 'x', which is no feature"),
    "no such table": (lambda m: m["schema"]["rows"].update(x=3), "no feature is looked up in table 'x'"),
    "sources": (lambda m: m.update(sources=7), "sources: expected a valid array, received 7"),
    "no checksums": (lambda m: m.pop("checksums"), "lacks checksums"),
    "rejected rows": (lambda m: m["quarantined"].update(rows=-1), "quarantined: has -1 rows"),
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_a_manifest_that_contradicts_the_dataset(two_runs: tuple[Path, Path], tmp_path: Path, case: str) -> None:
    prepared = tmp_path / "prepared"
    shutil.copytree(two_runs[0] / "prepared", prepared)
    values = json.loads((prepared / "manifest.json").read_text())
    forge, expected = CONTRADICTIONS[case]
    forge(values)
    (prepared / "manifest.json").write_text(json.dumps(sealed(values)))
    problem = next(each.problem for each in verify(prepared).problems if "manifest.json: " in each.problem)
    assert re.search(expected, problem)
    with pytest.raises(ZigguratError, match=rf"manifest\.json: .*{expected}"):
        evaluate(two_runs[0] / "run", prepared=prepared)


@pytest.mark.parametrize(
    "line",
    [b"", b"[]", b"null", b"7", b"{}", b'{"split": "train"}', b'{"split": 1, "step": 2}', b"{" * 5000, b"\xff\xfe",
     b'{"split": "train", "step": "3"}', b'{"split": "train", "step": 3, "loss": "low"}', b'{"step": 3}',
     b'{"split": "train", "step": 3, "loss": [1]}', b'{"split": "train", "step": true}'],
)  # fmt: skip
def test_forged_lines_of_metrics(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(line + b"\n")
    with pytest.raises(ZigguratError, match=r"metrics\.jsonl: line 1"):
        read_metrics_log(path)


def test_a_forged_sweep(tmp_path: Path) -> None:
    run = {
        "seed": 0, "folder": "rung-01/seed-0", "steps": 3, "examples": 12, "training_flops": 9, "seconds": 0.5,
        "figures": {"test": {"log_loss": 0.5, "auc": None}},
    }  # fmt: skip
    size = {"flops": 3, "dense_parameters": 2, "table_parameters": 1}
    entry = {"number": 1, "model": {"name": "dlrm"}, "size": size, "runs": [run], "diverged": []}
    values = {
        "format_version": 2, "name": "n", "split": "test", "dataset": "f", "seeds": 1, "rungs": [entry],
        "config": {"model": {"name": "dlrm"}}, "fit": None,
    }  # fmt: skip
    path = tmp_path / "scale.json"
    path.write_text(json.dumps(sealed(values)))
    assert ScaleResult.load(tmp_path).model == "dlrm"
    assert check(path, lambda: ScaleResult.load(tmp_path), values, seal=True) > 30
    assert check(path, lambda: ScaleResult.load(tmp_path), {**values, "format_version": 1}, seal=False) > 30

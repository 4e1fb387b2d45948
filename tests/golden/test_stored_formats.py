"""What commit eb19e07 left on disk is read, and gone on with, as that commit itself would have."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from make_stored import digests_of, metrics_of, probabilities_of, processor

import ziggurat
from ziggurat.checkpoint.inspect.run_folders import open_folder
from ziggurat.core.plan import Plan
from ziggurat.training.run_folder.resume import environment

STORED = Path(__file__).parent / "stored"
EXAMPLES = Path(__file__).parents[2] / "examples"
EXPECTED: dict[str, Any] = json.loads((STORED / "expected.json").read_text(encoding="utf-8"))


@pytest.fixture
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of what was stored, as the working directory; the run says that it was trained with this engine."""
    folder = tmp_path / "stored"
    shutil.copytree(STORED, folder)
    os.utime(folder / "log.csv", ns=(EXPECTED["modified_ns"], EXPECTED["modified_ns"]))
    path = folder / "run" / "environment.json"
    known, here = json.loads(path.read_text(encoding="utf-8")), environment(0)
    path.write_text(json.dumps(known | {key: here[key] for key in ("ziggurat", "torch", "torchrec", "fbgemm")}))
    monkeypatch.chdir(folder)
    threads = torch.get_num_threads()
    yield folder
    torch.set_num_threads(threads)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def contains(whole: Any, part: Any) -> bool:
    """Whether every key of ``part`` is in ``whole`` with the same value; keys that came later do not count."""
    if isinstance(part, dict):
        return isinstance(whole, dict) and all(key in whole and contains(whole[key], part[key]) for key in part)
    if isinstance(part, list):
        return isinstance(whole, list) and len(whole) == len(part) and all(map(contains, whole, part))
    return whole == part


def without_checksums(values: Any) -> Any:
    """What a file says besides its version, the checksums in it, and what statistics did not count before."""
    if isinstance(values, list):
        return [without_checksums(each) for each in values]
    if not isinstance(values, dict):
        return values
    newer = {"version", "format_version", "xxh3_128", "checksums", "accesses", "own_ids", "files"} - (
        {"files"} if "rows" in values else set()
    )
    return {key: without_checksums(each) for key, each in values.items() if key not in newer}


def test_a_stored_dataset_is_prepared_already(stored: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (stored / "prepared").rglob("*")}
    ziggurat.prepare(ziggurat.load_experiment("exp.yaml"), "prepared")
    assert {path: path.stat().st_mtime_ns for path in (stored / "prepared").rglob("*")} == before


def test_preparation_makes_the_stored_bytes(stored: Path) -> None:
    ziggurat.prepare(ziggurat.load_experiment("exp.yaml"), "again")
    ours, theirs = files_below(stored / "again"), files_below(stored / "prepared")
    assert ours.keys() == theirs.keys()
    newer = {"manifest.json", "statistics.json", "encoders/transform.json"}  # of a version that has checksums
    for name in ours.keys() - newer:
        assert ours[name] == theirs[name], name
    for name in newer:
        assert contains(without_checksums(json.loads(ours[name])), without_checksums(json.loads(theirs[name]))), name


def test_a_stored_run_goes_on_to_the_same_weights(stored: Path) -> None:
    """To the bit on the processor that stored them; elsewhere sums are rounded otherwise, so figures must be close."""
    outcome = ziggurat.train(ziggurat.load_experiment("exp.yaml"), "run", prepared="prepared")
    assert outcome.step == EXPECTED["steps"]
    assert outcome.results is not None
    found, probabilities = metrics_of(stored / "run"), probabilities_of(stored / "run", stored / "log.csv")
    if processor() == EXPECTED["processor"]:
        assert digests_of(outcome.run) == EXPECTED["digests"]
        assert found == EXPECTED["metrics"]
        assert probabilities == EXPECTED["probabilities"]
        figures = outcome.results["figures"]
        assert figures.keys() == EXPECTED["results"]["figures"].keys()
        for split, stored_figures in EXPECTED["results"]["figures"].items():
            assert figures[split] == pytest.approx(stored_figures, rel=1e-14)  # GAUC's mean is rounded once since then
    assert [line.keys() for line in found] == [line.keys() for line in EXPECTED["metrics"]]
    assert probabilities == pytest.approx(EXPECTED["probabilities"], abs=1e-3)
    assert outcome.results["best_step"] == EXPECTED["results"]["best_step"]


def test_stored_checkpoints_are_whole_and_their_plan_is_read(stored: Path) -> None:
    folder = open_folder(stored / "run")
    assert folder.steps() == [5, 10, 15, 17]
    for step in folder.steps():
        folder.load(step).verify()
    plan = Plan.from_json(json.loads((stored / "run" / "plan.json").read_text(encoding="utf-8")))
    assert plan.world_size == 1


@pytest.mark.usefixtures("stored")
def test_a_stored_config_means_what_it_meant() -> None:
    assert contains(ziggurat.load_experiment("exp.yaml").model_dump(mode="json"), EXPECTED["config"])
    assert contains(ziggurat.load_run("run").experiment.model_dump(mode="json"), EXPECTED["config"])


@pytest.mark.parametrize("name", sorted(EXPECTED["examples"]))
def test_an_example_means_what_it_meant(name: str) -> None:
    assert contains(ziggurat.load_experiment(EXAMPLES / name).model_dump(mode="json"), EXPECTED["examples"][name])

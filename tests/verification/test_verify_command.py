"""``ziggurat verify`` says what it checked and what is damaged, for everything that it can be given."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from damage_kit import flip
from typer.testing import CliRunner

import ziggurat
from ziggurat.cli.main import app
from ziggurat.core.errors import RunFolderError
from ziggurat.core.sealed import SEAL, sealed, write_sealed_json
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.scaling.model_sizes import Size
from ziggurat.training.scaling.result import RunResult, ScaleResult, SizeResult


def printed(path: Path | str, status: int = 0) -> str:
    result = CliRunner().invoke(app, ["verify", str(path)], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout


def json_output(path: Path | str, status: int = 0) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["verify", str(path), "--json"], catch_exceptions=False)
    assert result.exit_code == status, result.output
    found = json.loads(result.stdout)
    assert found["whole"] == (status == 0)
    return found


@pytest.fixture
def copied(two_runs: tuple[Path, Path], tmp_path: Path) -> Path:
    shutil.copytree(two_runs[0], tmp_path / "one")
    return tmp_path / "one"


def test_a_whole_run(two_runs: tuple[Path, Path]) -> None:
    out = printed(two_runs[0] / "run")
    assert out.splitlines()[0].endswith("run: run")
    for name in ("config.yaml", "plan.json", "encoders/transform.json", "encoders/table.user.safetensors",
                 "results.json", "checkpoints/step 6"):  # fmt: skip
        assert any(line.split("  ")[0] == name and "whole" in line for line in out.splitlines()), name
    assert "everything is as it was written" in out
    assert f"`ziggurat verify {two_runs[0] / 'prepared'}` checks it" in out.replace("\n", " ")


def test_a_whole_dataset(two_runs: tuple[Path, Path]) -> None:
    out = printed(two_runs[0] / "prepared")
    assert "prepared: prepared dataset" in out
    assert any(line.startswith("train ") and "blocks" in line for line in out.splitlines())


def test_damage_gives_status_1_and_says_what_to_do(copied: Path) -> None:
    path = copied / "prepared" / "test" / "00000.arrow"
    path.write_bytes(path.read_bytes()[:-700])
    (copied / "prepared" / "mine.txt").write_text("notes")
    out = printed(copied / "prepared", status=1)
    assert f"damaged: {path}: block 0 cannot be read" in out
    assert "  do: delete the prepared folder and run `ziggurat prepare` again" in out
    assert f"note: {copied / 'prepared' / 'mine.txt'}: does not belong to the dataset" in out
    found = json_output(copied / "prepared", status=1)
    assert {each["name"]: each["state"] for each in found["checked"]}["test"] == "damaged"
    assert {each["name"]: each["state"] for each in found["checked"]}["train"] == "whole"


def test_a_missing_file_is_damage(copied: Path) -> None:
    for name in ("plan.json", "metrics.jsonl", "dataset.json", "warm_start.json"):
        kept = (copied / "run" / name).read_bytes()
        (copied / "run" / name).unlink()
        found = json_output(copied / "run", status=1)
        assert any(f"{copied / 'run' / name}: is missing" == each["problem"] for each in found["problems"]), name
        (copied / "run" / name).write_bytes(kept)
    (copied / "run" / "results.json").unlink()
    found = json_output(copied / "run")
    assert any("training has not finished" in note for note in found["notes"])
    shutil.rmtree(copied / "prepared" / "train")
    out = printed(copied / "prepared", status=1).replace("\n", " ")
    assert f"{copied / 'prepared' / 'train'}: is missing" in out
    assert "prepare again: `ziggurat prepare`" in out
    assert "readers" not in out


def test_a_copy_from_readers_has_no_training_rows(copied: Path) -> None:
    shutil.move(copied / "prepared", copied / "run" / "dataset")
    shutil.rmtree(copied / "run" / "dataset" / "train")
    printed(copied / "run" / "dataset")


def test_an_environment_of_another_run_is_the_one_that_is_named(two_runs: tuple[Path, Path], copied: Path) -> None:
    run = copied / "run"
    shutil.copy2(two_runs[1] / "run" / "environment.json", run)
    (problem, *_) = json_output(run, status=1)["problems"]
    assert problem["problem"].startswith(f"{run / 'environment.json'}: belongs to run ")
    assert "the other files here to run" in problem["problem"]
    for name in ("dataset.json", "plan.json", "warm_start.json", "results.json"):  # nothing says which one is odd
        (run / name).unlink()
    with pytest.raises(RunFolderError, match=r"config\.yaml: belongs to run .*environment\.json to run ") as caught:
        open_run(run)
    assert "one of them is of another run" in caught.value.problem
    shutil.copy2(two_runs[0] / "run" / "environment.json", run)
    shutil.copy2(two_runs[0] / "run" / "plan.json", run)
    shutil.copy2(two_runs[1] / "run" / "config.yaml", run)
    with pytest.raises(RunFolderError, match=r"config\.yaml: belongs to run .*this folder holds run "):
        open_run(run)


def test_what_is_no_folder_is_not_called_missing(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("a,b\n")
    os.mkfifo(tmp_path / "pipe")
    for path, kind in (
        (tmp_path / "shop.csv", "a file"),
        (tmp_path / "pipe", "a named pipe"),
        ("/dev/zero", "a device"),
    ):
        with pytest.raises(RunFolderError) as caught:
            ziggurat.verify(path)
        assert f"{path}: is {kind}, not a folder of a run, prepared dataset" in caught.value.problem


def test_lost_lines_of_metrics_are_damage(copied: Path) -> None:
    path = copied / "run" / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:2] + lines[3:]))
    assert "metrics.jsonl: is not as it was written: metrics.jsonl has" in printed(copied / "run", status=1)


@pytest.mark.parametrize("finished", [True, False])
def test_doubled_lines_and_appended_zeros_of_metrics_are_damage(copied: Path, finished: bool) -> None:
    path = copied / "run" / "metrics.jsonl"
    if not finished:
        (copied / "run" / "results.json").unlink()
    whole = path.read_bytes()
    path.write_bytes(whole * 2)
    assert "records more than once" in printed(copied / "run", status=1)
    path.write_bytes(whole + bytes(16))
    assert "metrics.jsonl: ends in 16 bytes that are no record" in printed(copied / "run", status=1)
    path.write_bytes(whole + whole[:5])  # what a killed training may leave
    printed(copied / "run")


def test_checkpoints(copied: Path) -> None:
    checkpoints = copied / "run" / "checkpoints"
    assert json_output(checkpoints)["kind"] == "checkpoints"
    step = checkpoints / "step-00000006"
    assert "step 6" in [each["name"] for each in json_output(step)["checked"]]
    weights = next(step.glob("*.safetensors"))
    flip(weights, weights.stat().st_size // 2)
    for place in (checkpoints, step, copied / "run"):
        found = json_output(place, status=1)
        assert any(weights.name in each["problem"] and each["hint"] for each in found["problems"])
    shutil.rmtree(checkpoints)
    checkpoints.mkdir()
    assert "no checkpoint" in printed(checkpoints, status=1)


def test_a_sweep(copied: Path) -> None:
    sweep = copied / "sweep"
    shutil.copytree(copied / "run", sweep / "rung-01" / "seed-3")
    run = open_run(sweep / "rung-01" / "seed-3")
    results = run.results
    assert results is not None
    entry = RunResult(3, "rung-01/seed-3", results["steps"], 1, 1, 1.0, results["figures"])
    size = SizeResult(1, {"name": "deepfm"}, Size(1, 1, 1), (entry,))
    result = ScaleResult("n", "test", "f", 1, (size,), {"model": {"name": "deepfm"}})
    result.save(sweep)
    found = json_output(sweep)
    assert found["kind"] == "scaling sweep"
    assert {"scale.json", "rung-01/seed-3/config.yaml"} <= {each["name"] for each in found["checked"]}
    other = {**asdict(entry), "figures": {"test": {"log_loss": 0.1}}}
    values = json.loads((sweep / "scale.json").read_text())
    values["rungs"][0]["runs"] = [other]
    write_sealed_json(sweep / "scale.json", values)
    assert "scale.json: does not have the results of" in printed(sweep, status=1)
    values["rungs"][0]["runs"] = [{**other, "folder": "../run"}]
    write_sealed_json(sweep / "scale.json", values)
    assert "'../run', which is not in this folder" in printed(sweep, status=1)
    flip(sweep / "scale.json", 40)
    assert "scale.json" in printed(sweep, status=1)


@pytest.mark.parametrize("name", ["config.yaml", "environment.json"])
def test_a_run_without_what_it_begins_with(copied: Path, name: str) -> None:
    (copied / "run" / name).unlink()
    found = json_output(copied / "run", status=1)
    assert found["kind"] == "run"
    assert any(name in each["problem"] for each in found["problems"])
    assert any(each["name"] == "checkpoints/step 6" for each in found["checked"])


def test_other_folders_are_refused(tmp_path: Path, two_runs: tuple[Path, Path]) -> None:
    with pytest.raises(
        RunFolderError, match="holds no run, prepared dataset, checkpoint, scaling sweep, ensemble or exp"
    ):
        ziggurat.verify(tmp_path)
    with pytest.raises(RunFolderError, match="there is no such folder") as caught:
        ziggurat.verify(two_runs[0] / "prepare")
    assert str(two_runs[0] / "prepared") in caught.value.hint
    with pytest.raises(RunFolderError, match="name one of its runs") as caught:
        ziggurat.verify(two_runs[0])


def test_files_have_the_permissions_of_new_files(two_runs: tuple[Path, Path]) -> None:
    mask = os.umask(0)
    os.umask(mask)
    for path in (*two_runs[0].glob("prepared/**/*"), *two_runs[0].glob("run/encoders/*")):
        if path.is_file():
            assert path.stat().st_mode & 0o777 == 0o666 & ~mask, path


def test_the_seal_is_what_the_manifest_records(two_runs: tuple[Path, Path]) -> None:
    """A dataset and its runs name the transform by one checksum, which covers all of its files."""
    one = two_runs[0]
    transform = json.loads((one / "prepared/encoders/transform.json").read_text())
    manifest = json.loads((one / "prepared/manifest.json").read_text())
    pointer = json.loads((one / "run/dataset.json").read_text())
    assert manifest["checksums"]["encoders"] == transform[SEAL] == pointer["encoders"]
    assert manifest[SEAL] == sealed(manifest)[SEAL]
    assert sorted(transform["files"]) == sorted(
        path.name for path in (one / "prepared/encoders").iterdir() if path.name != "transform.json"
    )

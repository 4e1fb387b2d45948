"""``ziggurat checkpoint`` through the command line; the contents of checkpoints are tested in tests/checkpoint."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from tests.checkpoint.checkpoint_kit import Table, load_tensors, saver
from tests.checkpoint.inspection_kit import add_legacy_checkpoint, fill, flip, path_of
from ziggurat.checkpoint.folder import CheckpointFolder
from ziggurat.cli.main import app, main
from ziggurat.core.errors import DataError, RunFolderError
from ziggurat.core.files import locked_folder

COMMANDS = ("list", "inspect", "verify", "gather", "diff", "prune")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates a run folder with three checkpoints, of which the second is the best."""
    monkeypatch.chdir(tmp_path)
    fill(checkpoints(Path("runs/shop")), 3)
    return Path("runs/shop")


def checkpoints(run: Path) -> CheckpointFolder:
    return CheckpointFolder(run / "checkpoints", keep=100)


def printed(*arguments: str | Path, status: int = 0) -> list[str]:
    result = CliRunner().invoke(app, ["checkpoint", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == status, result.output
    return result.stdout.splitlines()


def json_output(*arguments: str | Path, status: int = 0) -> Any:
    return json.loads("\n".join(printed(*arguments, "--json", status=status)), parse_constant=pytest.fail)


def cells(lines: list[str], step: int) -> list[str]:
    return next(line.split() for line in lines if line.split()[:1] == [str(step)])


def test_listing(run: Path) -> None:
    add_legacy_checkpoint(checkpoints(run), 9)
    flip(path_of(checkpoints(run), 3, "manifest.json"))
    (run / "checkpoints" / "step-00000011").mkdir()
    lines = printed("list", run)
    assert lines[0].startswith("runs/shop/checkpoints: 4 checkpoints, ")
    assert lines[2].split() == [
        "step", "kind", "needs", "policy", "made", "(UTC)", "bits", "ranks", "rows", "written", "to", "restore",
    ]  # fmt: skip
    assert cells(lines, 1)[:3] == ["1", "full", "consecutive"]
    assert cells(lines, 2)[:4] == ["2", "delta", "1", "consecutive"]
    assert "best" in cells(lines, 2)
    assert cells(lines, 3)[:2] == ["3", "unreadable"]
    assert cells(lines, 9)[:7] == ["9", "full", "format", "1", "–", "last", "32"]
    assert lines[-2].startswith("step 3: runs/shop/checkpoints/step-00000003/manifest.json: ")
    assert lines[-1].startswith("step-00000011/: unfinished: still being written, or left by a dead training run; ")
    found = json_output("list", run / "checkpoints")
    assert [(each["step"], each["kind"], each["needs"]) for each in found["entries"]] == [
        (1, "full", []), (2, "delta", [1]), (3, None, []), (9, "full", []),
    ]  # fmt: skip
    assert found["best"] == {"step": 2, "metric": "auc", "value": 0.5}
    assert found["unfinished"] == ["step-00000011"]
    assert found["bytes"] == sum(each["bytes"] for each in found["entries"])


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    assert printed("list", tmp_path) == [f"{tmp_path}/checkpoints: 0 checkpoints, 0 B"]
    assert json_output("list", tmp_path)["entries"] == []
    for arguments in (
        ("inspect",),
        ("verify",),
        ("diff", "best", "last"),
        ("gather", "--out", tmp_path / "a.safetensors"),
    ):
        with pytest.raises(RunFolderError, match=r"checkpoints: no checkpoint\n  hint: train first"):
            printed(arguments[0], tmp_path, *arguments[1:])
    assert printed("prune", tmp_path, "--keep", "1") == ["nothing to delete; there is no checkpoint"]


def test_inspecting(run: Path) -> None:
    table = Table("item", 300, 7)
    plan = {"placements": {"item": {"sharding": "row_wise", "ranks": [0, 1, 2, 3]}}, "notes": ["rules: even"]}
    progression = {"step": 9, "cursor": [1, 12_000], "best": 0.5, "best_step": 2, "stale": 1, "stopped_early": True}
    folder = checkpoints(run)
    with saver(folder, table) as saving:
        saving._writer._plan = plan  # pyright: ignore[reportPrivateUsage] - the kit's saver has none
        saving.save(9, {}, {"progression": progression, "schedule": {"best": float("inf")}})
    lines = printed("inspect", run)
    assert lines[0] == "runs/shop/checkpoints/step-00000009"
    assert lines[1].startswith("full, policy intermittent, 32 bits, by 1 rank, 20")
    assert lines[1].endswith(" UTC, last")
    assert lines[2] == "step 9, epoch 1, 12,000 rows into it, best 0.5 at step 2, stopped early"
    assert lines[3] == "ziggurat 1"
    assert lines[4].endswith(" kB here; a restore reads nothing else")
    assert lines[6].split() == ["table", "bits", "sharding", "on", "rows", "dim", "rows", "here", "bytes", "here"]
    assert lines[7].split() == [
        "item", "weight", "32,", "sum", "32,", "mean", "32", "row_wise", "0–3", "300", "7", "300", "18", "kB",
    ]  # fmt: skip
    assert lines[8] == "rules: even"
    assert lines[-2].split()[1:4] == ["everything", "else", "0"]
    assert lines[-1].split()[1:3] == ["item", "0"]
    lines = printed("inspect", run, "3")
    assert lines[1].startswith("delta of step 1, policy consecutive, ")
    assert "; a restore reads " in lines[4]
    assert ", first step 1 (full, " in lines[4]
    found = json_output("inspect", run, "last")
    assert found["state"] == {"progression": progression, "schedule": {"best": "inf"}}
    assert found["plan"] == plan
    assert found["tables"][0]["shape"] == {"rows": 300, "dim": 7, "states": {"sum": 0, "mean": 7}}
    assert [each["step"] for each in json_output("inspect", run, "best")["chain"]] == [1, 2]


def test_inspecting_format_1(run: Path) -> None:
    add_legacy_checkpoint(checkpoints(run), 9)
    lines = printed("inspect", run, "9")
    assert lines[1:3] == ["full, format 1, 32 bits, last", "step 9, not evaluated yet"]
    assert any(line.startswith("tables.safetensors ") for line in lines)


def test_verifying(run: Path) -> None:
    lines = printed("verify", run)
    assert [cells(lines, step)[1:3] for step in (1, 2, 3)] == [["whole", "2"]] * 3
    assert lines[-1] == "all files match their checksums"
    (run / "checkpoints" / "notes.txt").touch()
    broken = path_of(checkpoints(run), 2, "rank-*")
    flip(broken)
    lines = printed("verify", run, status=1)
    assert [cells(lines, step)[1] for step in (1, 2, 3)] == ["whole", "broken", "cannot"]
    difference = (
        f"step 2: {broken}: its SHA-256 differs from the one recorded when it was written; it has rows of tables"
    )
    assert f"{difference} 'user', 'item'" in lines
    assert "step 3: needs the checkpoint of step 2, which is broken" in lines
    assert "notes.txt: not in any manifest" in lines
    assert lines[-1] == "1 of 3 whole; the newest whole one is step 1"
    found = json_output("verify", run, status=1)
    assert [(each["step"], each["state"]) for each in found["verdicts"]] == [
        (1, "whole"), (2, "broken"), (3, "unusable"),
    ]  # fmt: skip
    assert not found["whole"]
    assert printed("verify", run, "1")[-1] == "all files match their checksums"
    assert json_output("verify", run, "1")["whole"]
    assert printed("verify", run, "1", "best", status=1)
    flip(path_of(checkpoints(run), 1, "rank-*"))
    assert printed("verify", run, status=1)[-1].startswith("no checkpoint is whole: restore the files named above")
    flip(path_of(checkpoints(run), 1, "rank-*"))
    flip(broken)
    (run / "checkpoints" / "best.json").write_text("{}")
    assert any("best.json: " in line for line in printed("verify", run, status=1))


def test_gathering(run: Path) -> None:
    lines = printed("gather", run, "--out", "shop.safetensors")
    assert lines[0].startswith("shop.safetensors: step 2, 4 tensors, ")
    expected = load_tensors(checkpoints(run), 2)
    found = load_file("shop.safetensors")
    assert set(found) == {"dense/w", "dense/count", "tables/user", "tables/item"}
    assert all(torch.equal(found[name], expected[name]) for name in found)
    printed("gather", run, "3", "--optimizer", "-o", "shop.safetensors")
    assert "table_optimizer/item/sum" in load_file("shop.safetensors")
    save_file({"w": torch.ones(1)}, "theirs.safetensors")
    with pytest.raises(
        DataError, match=r"^theirs\.safetensors: exists, and was not made by `ziggurat checkpoint gather`"
    ):
        printed("gather", run, "--out", "theirs.safetensors")
    with pytest.raises(DataError, match=r"^shop\.pt: the output is a safetensors file"):
        printed("gather", run, "--out", "shop.pt")
    with pytest.raises(DataError, match="is a folder, not a file"):
        printed("gather", run, "--out", ".")


def test_comparing(run: Path) -> None:
    lines = printed("diff", run, "best", "last")
    assert lines[:2] == ["a: runs/shop/checkpoints step 2", "b: runs/shop/checkpoints step 3"]
    assert lines[3].split() == ["table", "rows", "differ", "max", "|b−a|", "mean", "|b−a|", "‖b−a‖/‖a‖"]
    item = next(line.split() for line in lines if line.startswith("item"))
    before, after = (load_tensors(checkpoints(run), step)["tables/item"] for step in (2, 3))
    assert item[1:3] == ["300", str(int((before != after).any(1).sum()))]
    assert float(item[3]) == pytest.approx(float((before - after).abs().max()), rel=1e-3)
    assert next(line.split() for line in lines if line.startswith("dense/w")) == [
        "dense/w", "identical", "6", "0", "–", "–", "–",
    ]  # fmt: skip
    assert lines[-1] == "2 of 4 tensors differ"
    assert printed("diff", run, "3", "last")[-1] == "identical: 4 tensors, bit for bit"
    other = Path("runs/other")
    with saver(checkpoints(other), Table("item", 300, 8)) as saving:
        saving.save(7, {"dense/w": torch.full((2, 3), float("nan"))}, {})
    lines = printed("diff", run, "1", "7", "--other", other)
    assert lines[1] == "b: runs/other/checkpoints step 7"
    assert next(line for line in lines if line.startswith("item")).split()[1:] == [
        "300×7", "in", "a,", "300×8", "in", "b", *["–"] * 5,
    ]  # fmt: skip
    assert "only in a" in next(line for line in lines if line.startswith("user"))
    found = json_output("diff", run, "1", "7", "--other", other)
    assert not found["identical"]
    weights = next(each for each in found["tensors"] if each["name"] == "w")
    assert (weights["state"], weights["different"], weights["largest"]) == ("different", 6, "nan")
    assert json_output("diff", run, "1", "1")["identical"]


def test_pruning(run: Path) -> None:
    folder = checkpoints(run)
    with saver(folder, Table("item", 300, 7)) as saving:
        saving.save(5, {}, {})
    leftover = run / "checkpoints" / "step-00000004"
    leftover.mkdir()
    with locked_folder(run, "training"), pytest.raises(RunFolderError, match="another process is training in this"):
        printed("prune", run, "--keep", "1")
    lines = printed("prune", run, "--keep", "1", "--dry-run")
    assert lines[:2] == ["would delete step 3", "would delete step-00000004/ (unfinished)"]
    assert lines[2].endswith(" kB would be freed; kept: 1, 2, 5")
    assert folder.steps() == [1, 2, 3, 5]
    assert leftover.is_dir()
    assert json_output("prune", run, "--keep", "1", "--dry-run")["steps"] == [3]
    lines = printed("prune", run, "--keep", "1")
    assert lines[:2] == ["deleted step 3", "deleted step-00000004/ (unfinished)"]
    assert folder.steps() == [1, 2, 5]
    assert not leftover.exists()
    assert printed("prune", run, "--keep", "1") == ["nothing to delete; kept: 1, 2, 5"]
    found = json_output("prune", run, "--keep", "1")
    assert (found["steps"], found["kept"], found["bytes"], found["dry_run"]) == ([], [1, 2, 5], 0, False)
    assert CliRunner().invoke(app, ["checkpoint", "prune", str(run), "--keep", "0"]).exit_code == 2


@pytest.mark.parametrize("command", ["list", "inspect", "verify", "diff", "gather", "prune"])
def test_a_wrong_folder_or_step_is_explained(run: Path, command: str) -> None:
    more = {"diff": ["1", "2"], "gather": ["--out", "a.safetensors"], "prune": ["--keep", "1"]}.get(command, [])
    Path("empty").mkdir()
    with pytest.raises(RunFolderError, match=r"^runs/shpo: there is no such folder\n  hint: did you mean runs/shop\?"):
        printed(command, "runs/shpo", *more)
    with pytest.raises(RunFolderError, match=r"^empty: not a run folder: there is neither config\.yaml nor a folder"):
        printed(command, "empty", *more)
    with pytest.raises(
        RunFolderError, match=r"^runs: contains runs, but is not one\n  hint: name one of them, as runs/shop"
    ):
        printed(command, "runs", *more)
    wrong = {"inspect": ["77"], "verify": ["77"], "diff": ["1", "77"], "gather": ["77", "--out", "a.safetensors"]}
    if command in wrong:
        with pytest.raises(RunFolderError, match=r"no checkpoint of step 77; there are \[1, 2, 3\]"):
            printed(command, run, *wrong[command])
        words = ["newest" if each == "77" else each for each in wrong[command]]
        with pytest.raises(RunFolderError, match="checkpoint 'newest' is neither 'best', 'last' nor a step"):
            printed(command, run, *words)
    assert not Path("a.safetensors").exists()


def test_an_error_takes_two_lines(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    flip(path_of(checkpoints(run), 3, "manifest.json"))
    monkeypatch.setattr(sys, "argv", ["ziggurat", "checkpoint", "inspect", str(run)])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 1
    problem, hint = capsys.readouterr().err.splitlines()[-2:]
    assert problem.startswith("error: runs/shop/checkpoints/step-00000003/manifest.json: ")
    assert hint == "hint:  `ziggurat checkpoint list` shows the others"


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [60, 100])
def test_help_fits_the_terminal_and_shows_an_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "argv", ["ziggurat", "checkpoint", command, "--help"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    out = capsys.readouterr().out
    examples = [line for line in out.splitlines() if line.startswith(("    ziggurat ", "      --"))]
    assert f"\n    ziggurat checkpoint {command} runs/shop" in out
    assert all(len(line) <= 80 for line in examples)
    assert all(len(line) <= columns for line in out.splitlines() if line not in examples)
    assert out.isascii()


def test_every_command_is_tested_here(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ziggurat", "checkpoint"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    listed = capsys.readouterr().out.partition("Commands:\n")[2].splitlines()
    assert tuple(line.split()[0] for line in listed if line.strip()) == COMMANDS


def test_progress_off_a_terminal_and_on_one(run: Path) -> None:
    command = [sys.executable, "-m", "ziggurat", "checkpoint", "verify", str(run)]
    plain = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    assert plain[0].startswith("manifests: 3/3 read, took ")
    assert plain[1].startswith("verify: ")
    assert " bytes, step 3, took " in plain[1]
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    with subprocess.Popen(command, stderr=follower, stdout=subprocess.DEVNULL, env=environment) as process:
        os.close(follower)
        shown = b""
        while True:
            try:
                shown += os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
    os.close(leader)
    assert process.returncode == 0
    assert b"\x1b[" in shown
    assert b"verify" in shown

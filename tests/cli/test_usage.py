"""Usage of the commands: the help texts fit the terminal, and mistakes are reported in two lines like all errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import parse_args

from ziggurat.cli.main import app, main

COMMANDS = (
    "init", "prepare", "plan", "ingest", "train", "evaluate", "predict", "report", "scale", "generate", "schema",
    "verify", "doctor", "towers", "ensemble", "export", "serve",
    "datasets get", "search hyperparameters",
    "policies train", "policies select", "policies evaluate", "policies report",
)  # fmt: skip


def ziggurat(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Runs the command line in this process; returns exit status, standard output and standard error."""
    monkeypatch.setattr(sys, "argv", ["ziggurat", *arguments])
    with pytest.raises(SystemExit) as stop:
        main()
    out, errors = capsys.readouterr()
    return int(stop.value.code or 0), out, errors


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("trian exp.yaml", "ziggurat: No such command 'trian'. Did you mean 'train'?"),
        ("train --foo exp.yaml", "ziggurat train: No such option: --foo"),
        ("train", "ziggurat train: Missing argument 'CONFIG'."),
        ("train exp.yaml more", "ziggurat train: Got unexpected extra argument(s) (more)"),
        ("evaluate run --split tst", "ziggurat evaluate: Invalid value for '--split': 'tst' is not one of 'train', "),
        ("generate log.csv --rows 0", "ziggurat generate: Invalid value for '--rows': "),
        ("train exp.yaml --stop-after -3", "ziggurat train: Invalid value for '--stop-after': "),
        ("plan exp.yaml --devices 0", "ziggurat plan: Invalid value for '--devices': "),
        ("datasets got", "ziggurat datasets: No such command 'got'. Did you mean 'get'?"),
    ],
)
def test_a_mistyped_command_is_explained_like_any_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str, problem: str
) -> None:
    status, out, errors = ziggurat(capsys, monkeypatch, *line.split())
    assert (status, out) == (2, "")
    first, second = errors.splitlines()
    assert first.startswith(f"error: {problem}")
    assert second == f"hint:  `{problem.partition(':')[0]} --help` lists its arguments and options"


@pytest.mark.parametrize(
    ("arguments", "problem", "hint"),
    [
        (("--restarts", "2"), "--restarts 2: needs --nproc 2 or more, ", "add --nproc N, or leave --restarts out; "),
        (("--restarts", "2", "--nproc", "1"), "--restarts 2: needs --nproc 2 or more, ", "add --nproc N, "),
        (
            ("--readers", ""),
            "--readers '': names no reader",
            "give the addresses that `ziggurat ingest` printed, as grpc://HOST",
        ),
        (("--readers", " , "), "--readers ' , ': names no reader", "give the addresses that "),
        (("--readers", "grpc://a:1", "--readers", ""), "--readers '': names no reader", "give the addresses that "),
        (("--readers", "", "--nproc", "2"), "--readers '': names no reader", "give the addresses that "),
        (("--warm-start", " "), "--warm-start '': names no run", "name a run folder, or leave --warm-start out"),
        (
            ("--set", "training.warm_start.tables=[a]", "--warm-start", "old", "--nproc", "2"),
            "--warm-start old: --set training.warm_start.tables=[a] also configures the warm start",
            "leave --warm-start out and add --set training.warm_start.run=old, or leave that --set out",
        ),
    ],
)
def test_options_of_train_without_effect_are_refused(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    problem: str,
    hint: str,
) -> None:
    status, out, errors = ziggurat(capsys, monkeypatch, "train", "exp.yaml", *arguments)
    assert (status, out) == (1, "")
    first, second = errors.splitlines()
    assert first.startswith(f"error: {problem}")
    assert second.startswith(f"hint:  {hint}")


@pytest.mark.parametrize("arguments", [(), ("datasets",)])
def test_without_a_command_there_is_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    status, out, errors = ziggurat(capsys, monkeypatch, *arguments)
    assert (status, errors) == (2, "")
    assert out.startswith(f"Usage: {' '.join(('ziggurat', *arguments))} ")
    assert "Commands:" in out


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("columns", [60, 100])
def test_help_fits_the_terminal_and_shows_an_example(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: str, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    status, out, _ = ziggurat(capsys, monkeypatch, *command.split(), "--help")
    assert status == 0
    assert f"\n    ziggurat {command}" in out
    examples = [line for line in out.splitlines() if line.startswith("    ziggurat ")]
    assert all(len(line) <= 80 for line in examples)
    assert all(len(line) <= columns for line in out.splitlines() if line not in examples)
    assert out.isascii()


def test_every_command_is_tested_here() -> None:
    names = {command.name for command in app.registered_commands}
    assert names == {command for command in COMMANDS if " " not in command}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['ziggurat', '--help']\n"
        "from ziggurat.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'numpy', 'polars', 'pyarrow', 'pydantic', 'sklearn'} & sys.modules.keys()))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "[]"


def test_a_closed_pipe_is_no_error() -> None:
    command = f"{sys.executable} -m ziggurat schema | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, check=True)
    assert (result.stdout, result.stderr) == ("{\n", "")


def test_the_schema_says_what_it_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    schema = json.loads(ziggurat(capsys, monkeypatch, "schema")[1])
    assert list(schema)[:3] == ["$schema", "$id", "title"]
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (schema["$id"], schema["title"]) == ("urn:ziggurat:experiment", "Experiment")


def test_an_empty_config_names_init(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "exp.yaml"
    for text, problem in (("", "the file is empty"), ("# nothing yet\n", "holds no keys")):
        path.write_text(text)
        status, _, errors = ziggurat(capsys, monkeypatch, "train", str(path))
        assert status == 1
        assert errors.startswith(f"error: {path}: {problem}\nhint:  if `ziggurat init … > {path}` made it, init failed")
        assert f"`ziggurat init FILES --out {path}`" in errors


def test_torchrun_takes_the_example_of_several_hosts(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, out, _ = ziggurat(capsys, monkeypatch, "train", "--help")
    example = out.partition("    torchrun ")[2].partition("\n\n")[0].replace("\\\n", " ")
    read = parse_args(example.split())
    assert [read.module, read.training_script, *read.training_script_args] == [
        True, "ziggurat", "train", "exp.yaml", "--run", "runs/exp",
    ]  # fmt: skip

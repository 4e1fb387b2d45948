"""``ziggurat towers`` through the command line, and ``ziggurat.partition_towers``."""

from __future__ import annotations

import shutil
import signal
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score
from typer.testing import CliRunner

import ziggurat
from tests.commands import Command
from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError, DataError, RunFolderError
from ziggurat.data.synthetic.config import CategoricalColumn, GeneratorConfig, LabelColumn
from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import groups_shape, planted_groups
from ziggurat.towers.config import Given
from ziggurat.training.experiment import Experiment

CONFIG = """\
# A log with two groups of columns.
name: planted
data:
  source: {name: parquet, files: [log.parquet]} # the only file
  split: {name: random, validation: 0.1, test: 0.1}
  labels:
    - {name: label}
features:
  # Those that interact are a, c and e; and b, d and f.
  - {name: a, kind: categorical, type: integer}
  - {name: b, kind: categorical, type: integer}
  - {name: c, kind: categorical, type: integer}
  - {name: d, kind: categorical, type: integer}
  - {name: e, kind: categorical, type: integer}
  - {name: f, kind: categorical, type: integer}
embeddings: {dim: 8, init_std: 0.1, optimizer: {name: rowwise_adagrad, lr: 0.2}}
model: {name: dlrm, top: {hidden: [32]}}
training: {batch_size: 256, epochs: 2, seed: 1}
"""

PAIRS = (("a", "c"), ("c", "e"), ("a", "e"), ("b", "d"), ("d", "f"), ("b", "f"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a log, its config, the prepared data and a run of the flat model; tests only read it."""
    folder = tmp_path_factory.mktemp("planted")
    log = GeneratorConfig(
        rows=20_000,
        seed=2,
        labels=(LabelColumn(name="label", first_order=0.3, second_order=3.0),),
        categorical=tuple(CategoricalColumn(name=name, cardinality=8, exponent=0) for name in "abcdef"),
        pairs=PAIRS,
        format="parquet",
    )
    generate(log, folder / "log.parquet")
    (folder / "exp.yaml").write_text(CONFIG)
    experiment = ziggurat.load_experiment(folder / "exp.yaml", data_folder=folder)
    ziggurat.train(experiment, folder / "flat", prepared=folder / "prepared")
    return folder


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str | Path) -> str:
    result = CliRunner().invoke(app, ["towers", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_towers_of_a_run_are_printed_written_and_drawn(folder: Path) -> None:
    lines = run(folder / "exp.yaml", "--towers", "2", "--from", folder / "flat", "--data", folder).splitlines()
    assert lines[0] == f"planted: 6 features in 2 towers, from {folder / 'flat'}"
    assert lines[2].split() == ["tower", "features", "count", "load", "share"]
    assert lines[3].split() == ["0", "a,", "c,", "e", "3", "24", "50.0", "%"]
    assert lines[4].split() == ["1", "b,", "d,", "f", "3", "24", "50.0", "%"]
    assert lines[6].startswith("The most loaded tower has 1.00× the mean load; ")
    assert lines[-1] == "exp-towers.yaml exp-towers.html"
    text = Path("exp-towers.yaml").read_text(encoding="utf-8")
    for kept in (
        "# A log with two groups of columns.\n",
        "# the only file\n",
        "  # Those that interact are a, c and e",
    ):
        assert kept in text
    assert "# Found by `ziggurat towers --towers 2`" in text
    assert "      - [a, c, e]\n      - [b, d, f]\n" in text
    written = ziggurat.load_experiment("exp-towers.yaml")
    assert written.name == "planted-towers"
    assert written.data.folder == folder
    assert written.towers is not None
    assert written.towers.partition == Given(towers=(("a", "c", "e"), ("b", "d", "f")))
    page = Path("exp-towers.html").read_text(encoding="utf-8")
    assert "planted: features in towers" in " ".join(ET.fromstring(page).itertext())


def test_what_is_written_trains(folder: Path) -> None:
    """Its other keys stay: those of the section, and those of --set."""
    config = Path("with-module.yaml")
    module = "towers:\n  # DLRM's\n  module: {name: dlrm, each: 1, width: 4}\n  partition: {name: strided, towers: 3}\n"
    config.write_text(CONFIG + module)
    run(
        config, "--towers", "2", "--from", folder / "flat", "--data", folder, "-o", "new/two.yaml",
        "--set", "training.max_steps=3", "--set", "training.schedule={name: constant}",
    )  # fmt: skip
    text = Path("new/two.yaml").read_text(encoding="utf-8")
    assert "# DLRM's" in text
    assert "max_steps: 3" in text
    experiment = ziggurat.load_experiment("new/two.yaml")
    assert experiment.training.max_steps == 3
    outcome = ziggurat.train(experiment, "run", prepared=folder / "prepared")
    assert outcome.results is not None
    assert outcome.step == 3
    assert any("towers.0" in name for name in outcome.run.checkpoints.load(3).shapes("dense") or {})


def test_the_comment_on_towers_found_before_is_replaced_and_no_other(folder: Path) -> None:
    run(folder / "exp.yaml", "--towers", "2", "--from", folder / "flat", "--data", folder, "-o", "two.yaml")
    two = Path("two.yaml").read_text(encoding="utf-8")
    own = two.replace("# Found by", "# Ours.\n# Found by").replace("\ntowers:", "\n# Also ours.\ntowers:")
    Path("two.yaml").write_text(own, encoding="utf-8")
    run("two.yaml", "--towers", "3", "--from", folder / "flat", "-o", "three.yaml")
    three = Path("three.yaml").read_text(encoding="utf-8")
    assert "# Found by `ziggurat towers --towers 3`" in three
    assert three.count("# Found by") == three.count("# The most loaded tower has") == 1
    assert (
        three.index("# Ours.\n") < three.index("# Also ours.\n") < three.index("# Found by") < three.index("\ntowers:")
    )
    assert two.count("\n") + 3 == three.count("\n")  # two comments, and a tower


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("ziggurat.training.api.partition_towers")
    arguments = (folder / "exp.yaml", "--towers", "2", "--from", folder / "flat")
    for place in ("/proc/x/y.yaml", "/proc/y.yaml"):
        with pytest.raises(DataError, match=rf"^{place}: .*cannot be (made|written): No such file"):
            run(*arguments, "-o", place)
    Path("file").write_text("")
    with pytest.raises(DataError, match=r"file/y\.yaml: cannot be written: File exists"):
        run(*arguments, "-o", "file/y.yaml")


def test_a_config_of_the_transform_needs_no_towers_before_they_are_found(folder: Path) -> None:
    config = Path("transform.yaml")
    config.write_text(CONFIG + "parallel: {embeddings: {name: tower_transform}}\n")
    run(config, "--towers", "2", "--from", folder / "flat", "--data", folder, "-o", "two.yaml")
    written = ziggurat.load_experiment("two.yaml")
    assert written.parallel.embeddings.name == "tower_transform"
    assert written.towers is not None
    assert written.towers.partition == Given(towers=(("a", "c", "e"), ("b", "d", "f")))


def test_the_flat_model_is_trained_if_no_run_is_named(folder: Path) -> None:
    """Of a config with towers, without them and beside its run; a second call finds it trained."""
    config = Path("exp.yaml")
    config.write_text(CONFIG + "towers: {partition: {name: strided, towers: 2}, module: {name: dcn, width: 8}}\n")
    steps = ("--set", "training.max_steps=2", "--data", folder, "--prepared", folder / "prepared")
    first = run(config, "--towers", "3", *steps)
    assert "planted: 6 features in 3 towers, from runs/planted-flat" in first
    flat = ziggurat.load_run("runs/planted-flat")
    assert flat.experiment.towers is None
    assert run(config, "--towers", "3", *steps) == first
    config.write_text(CONFIG)
    shutil.rmtree("runs")
    run(config, "--towers", "2", "--diverse", "--seed", "3", *steps)
    assert [path.name for path in Path("runs").iterdir()] == ["planted"]
    assert "# Found by `ziggurat towers --towers 2 --diverse --seed 3`" in Path("exp-towers.yaml").read_text()


def test_the_python_api_partitions_the_same(folder: Path) -> None:
    experiment = ziggurat.load_experiment(folder / "exp.yaml", data_folder=folder)
    found = ziggurat.partition_towers(experiment, 2, run=folder / "flat")
    assert found.signal is None
    assert found.partition is not None
    assert found.partition.towers == (("a", "c", "e"), ("b", "d", "f"))
    assert found.partition.loads == (24.0, 24.0)  # three tables of 8 floats, one look-up an example each
    assert found.experiment is not None
    assert found.experiment.towers is not None
    assert found.experiment.towers.partition == Given(towers=found.partition.towers)
    assert found.experiment.name == "planted-towers"
    diverse = ziggurat.partition_towers(experiment, 3, run=ziggurat.load_run(folder / "flat"), diverse=True)
    assert diverse.partition is not None
    assert all(len({name in "ace" for name in tower}) == 2 for tower in diverse.partition.towers)
    ziggurat.write_partition("page.html", "planted", found.partition, found.run.folder)
    assert Path("page.html").is_file()


def test_a_signal_saves_the_flat_model(folder: Path) -> None:
    arguments = ["towers", str(folder / "exp.yaml"), "--towers", "2", "--data", str(folder)]
    arguments += ["--prepared", str(folder / "prepared"), "--set", "training.epochs=100000"]
    command = Command(*arguments)
    deadline = time.monotonic() + 120
    log = Path("runs/planted/metrics.jsonl")
    while not (log.exists() and log.stat().st_size) and time.monotonic() < deadline and command.poll() is None:
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    out, errors = command.communicate()
    assert command.returncode == 128 + signal.SIGINT, errors
    assert errors.splitlines()[-1] == (
        "stopped by SIGINT; the flat model is saved in runs/planted. Run the same command to resume."
    )
    assert not out
    assert not Path("exp-towers.yaml").exists()
    assert ziggurat.list_checkpoints("runs/planted")


def test_misuse_is_explained(folder: Path) -> None:
    config, flat = folder / "exp.yaml", ("--from", folder / "flat")
    with pytest.raises(ConfigError, match=r"towers\.partition\.towers: received 7, there are 6 features with tables"):
        run(config, "--towers", "7", *flat)
    with pytest.raises(ConfigError, match="model: logistic_regression adds up table rows, which are parts of the"):
        run(config, "--towers", "2", "--set", "model={name: logistic_regression}")
    numeric = "[{name: a, kind: numeric}, {name: b, kind: numeric}]"
    with pytest.raises(ConfigError, match="planted: no feature has an embedding table, so there is nothing to divide"):
        run(config, "--towers", "2", "--set", f"features={numeric}", "--set", "model={name: dnn}")
    few = "[{name: a, kind: categorical, type: integer}, {name: bb, kind: categorical, type: integer}]"
    with pytest.raises(RunFolderError, match=r"flat: was trained on other features .*'bb' is not in the run"):
        run(config, "--towers", "2", *flat, "--set", f"features={few}")
    with pytest.raises(RunFolderError, match=r"nowhere: no run folder"):
        run(config, "--towers", "2", "--from", "nowhere")
    with pytest.raises(ConfigError, match="would overwrite the config"):
        run(config, "--towers", "2", *flat, "-o", config)
    with pytest.raises(ConfigError, match=r"two\.html: is the name of the HTML page\n  hint: name the config"):
        run(config, "--towers", "2", *flat, "-o", "two.html")
    with pytest.raises(DataError, match="is a folder"):
        run(config, "--towers", "2", *flat, "-o", ".")
    assert CliRunner().invoke(app, ["towers", str(config), "--towers", "0"]).exit_code == 2
    with pytest.raises(ConfigError, match="towers: received 0"):
        ziggurat.partition_towers(config, 0)


def test_a_run_with_towers_is_refused(folder: Path) -> None:
    experiment: Experiment = ziggurat.load_experiment(
        folder / "exp.yaml", ["training.max_steps=1", "towers={partition: {name: strided, towers: 2}}"], folder
    )
    ziggurat.train(experiment, "towers", prepared=folder / "prepared")
    with pytest.raises(RunFolderError, match="towers: was trained with towers, which change how features interact"):
        ziggurat.partition_towers(experiment, 2, run="towers")


def test_groups_of_the_generated_shape_are_known() -> None:
    config = groups_shape(10, seed=5)
    groups = planted_groups(config)
    assert [len(group) for group in groups] == [6, 6, 6, 6]
    assert sorted(name for group in groups for name in group) == sorted(column.name for column in config.features)
    assert len(config.pairs) == 4 * 15
    group_of = {name: number for number, group in enumerate(groups) for name in group}
    assert all(group_of[one] == group_of[other] for one, other in config.pairs)
    truth = [group_of[column.name] for column in config.features]
    assert adjusted_rand_score(truth, np.arange(24) % 4) < 0.3  # strided towers are not the groups
    assert planted_groups(groups_shape(10, seed=6)) != groups

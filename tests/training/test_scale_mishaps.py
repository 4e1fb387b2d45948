"""Scaling sweeps with invalid arguments, repeated with other numbers, or with a size that diverges."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import MakeExperiment
from tests.training.test_scale import Recorder
from tests.training.test_scale import sizes_file as sizes_file
from ziggurat.core.errors import ConfigError, DivergedError, RunFolderError
from ziggurat.core.files import locked_folder
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.scaling.result import ScaleResult
from ziggurat.training.scaling.sweep import scale

SIZES = "".join(f"- {{model.deep.hidden: [{width}]}}\n" for width in (4, 8, 16, 32))
BROKEN = "optimizer: {name: sgd, lr: 1.0e+30}"


@pytest.fixture
def four_sizes(tmp_path: Path) -> Path:
    """Returns a file that lists four growing sizes."""
    path = tmp_path / "four.yaml"
    path.write_text(SIZES)
    return path


def test_a_refused_sweep_is_not_changed(make_experiment: MakeExperiment, four_sizes: Path) -> None:
    def make(**changes: Any) -> Experiment:
        return make_experiment(training__max_steps=2, **changes)

    scale(make(), "runs/rep", seeds=1, sizes_file=four_sizes)
    before = Path("runs/rep/scale.json").read_bytes()
    for changed in ({"optimizer__lr": 0.1}, {"training__seed": 9, "optimizer__lr": 0.1}):
        with pytest.raises(RunFolderError, match=r"size 1, seed 3: .*another config\n  optimizer.lr") as refused:
            scale(make(**changed), "runs/rep", seeds=1, sizes_file=four_sizes)
        assert refused.value.hint == "name another folder with --run, or delete runs/rep"
    assert Path("runs/rep/scale.json").read_bytes() == before
    assert not Path("runs/rep/rung-01/seed-9").exists()

    four_sizes.write_text(SIZES.replace("[32]", "[32], optimizer.lr: 0.1"))
    with pytest.raises(RunFolderError, match=r"size 4, seed 3: ") as refused:
        scale(make(), "runs/rep", seeds=1, sizes_file=four_sizes)
    assert refused.value.hint.endswith("or delete runs/rep/rung-04, which is then trained again")
    assert Path("runs/rep/scale.json").read_bytes() == before

    with (Path("log.csv")).open("a") as log:
        log.write("u1,3,40,1,2,1,0,9999,more\n")
    with pytest.raises(RunFolderError, match=r"size 1, seed 3: .*holds dataset"):
        scale(make(), "runs/rep", seeds=1, sizes_file=four_sizes)
    assert Path("runs/rep/scale.json").read_bytes() == before


def test_fewer_seeds_and_sizes_keep_finished_runs(make_experiment: MakeExperiment, four_sizes: Path) -> None:
    experiment = make_experiment(training__max_steps=2)
    whole = scale(experiment, "sweep", seeds=2, sizes_file=four_sizes).result
    shutil.rmtree("sweep/rung-02/seed-4/checkpoints")
    Path("sweep/rung-02/seed-4/results.json").unlink()
    four_sizes.write_text("".join(SIZES.splitlines(keepends=True)[:3]))
    recorder = Recorder()
    fewer = scale(experiment, "sweep", seeds=1, sizes_file=four_sizes, progress=recorder).result
    assert "train" not in recorder.stages
    assert [len(entry.runs) for entry in fewer.sizes] == [2, 1, 2]
    assert fewer.sizes[0] == whole.sizes[0]
    assert ScaleResult.load("sweep") == fewer
    assert "sweep also holds rung-04, left out: the sweep has 3 sizes" in recorder.notes
    assert any("sweep/rung-02/seed-4 is left out: it is not fully trained" in note for note in recorder.notes)
    four_sizes.write_text(SIZES)
    again = scale(experiment, "sweep", seeds=2, sizes_file=four_sizes).result
    assert [entry.values("test", "log_loss") for entry in again.sizes] == [
        entry.values("test", "log_loss") for entry in whole.sizes
    ]


def test_a_longer_training_leaves_out_shorter_runs(make_experiment: MakeExperiment, four_sizes: Path) -> None:
    scale(make_experiment(training__max_steps=2), "sweep", seeds=2, sizes_file=four_sizes)
    longer = scale(make_experiment(training__max_steps=3), "sweep", seeds=1, sizes_file=four_sizes).result
    assert [[run.steps for run in entry.runs] for entry in longer.sizes] == [[3]] * 4


def test_a_diverged_size_is_left_out_and_tried_again(make_experiment: MakeExperiment, four_sizes: Path) -> None:
    experiment = make_experiment(training__max_steps=6, training__log_every=1)
    four_sizes.write_text(SIZES.replace("[16]", f"[16], {BROKEN}"))
    recorder = Recorder()
    scaled = scale(experiment, "sweep", seeds=2, sizes_file=four_sizes, progress=recorder)
    assert (scaled.signal, scaled.missing) == (None, 0)
    assert [len(entry.runs) for entry in scaled.result.sizes] == [2, 2, 0, 2]
    lost = scaled.result.sizes[2].diverged
    assert [(run.seed, run.folder) for run in lost] == [(3, "rung-03/seed-3"), (4, "rung-03/seed-4")]
    assert all(run.reason.startswith("the training loss became ") for run in lost)
    assert scaled.result.fit() is not None
    assert ScaleResult.load("sweep") == scaled.result
    assert scaled.result.caveats[0].startswith("Size 3, seed 3, diverged and is left out: the training loss became ")
    assert sum("the sweep continues without this run" in note for note in recorder.notes) == 2

    again = Recorder()
    assert scale(experiment, "sweep", seeds=2, sizes_file=four_sizes, progress=again).result == scaled.result
    assert again.stages.count("train") == 2

    shutil.rmtree("sweep/rung-03")
    four_sizes.write_text(SIZES)
    fixed = scale(experiment, "sweep", seeds=2, sizes_file=four_sizes).result
    assert [len(entry.runs) for entry in fixed.sizes] == [2, 2, 2, 2]
    assert not any("diverged" in caveat for caveat in fixed.caveats)


def test_too_many_diverged_sizes_leave_no_law(make_experiment: MakeExperiment, sizes_file: Path) -> None:
    text = sizes_file.read_text().replace("optimizer.lr: 0.002", BROKEN)
    sizes_file.write_text(text)
    with pytest.raises(DivergedError, match=r"2 of 3 sizes have a finished run, a law needs 3\n  size 3, seed 3: the"):
        scale(make_experiment(training__log_every=1, training__epochs=1), "sweep", seeds=1, sizes_file=sizes_file)
    kept = ScaleResult.load("sweep")
    assert [len(entry.runs) for entry in kept.sizes] == [1, 1, 0]
    assert kept.sizes[2].diverged[0].seed == 3


def test_other_errors_stop_the_sweep(make_experiment: MakeExperiment, sizes_file: Path) -> None:
    experiment = make_experiment(training__max_steps=2)
    scale(experiment, "sweep", seeds=1, sizes_file=sizes_file)
    with (
        locked_folder(Path("sweep/rung-02/seed-4"), "training"),
        pytest.raises(RunFolderError, match=r"size 2, seed 4: .*another process is training"),
    ):
        scale(experiment, "sweep", seeds=2, sizes_file=sizes_file)
    assert [len(entry.runs) for entry in ScaleResult.load("sweep").sizes] == [2, 1, 1]


@pytest.mark.parametrize("sizes", [60, 5000])
def test_sizes_beyond_the_machine_are_refused_with_their_cost(make_experiment: MakeExperiment, sizes: int) -> None:
    cost = (
        r"size \d\d costs \S+ FLOPs per example and \S+ dense parameters: [\d,]+ GiB of weights, and this machine has"
    )
    with pytest.raises(ConfigError, match=cost) as refused:
        scale(make_experiment(), "sweep", sizes=sizes)
    number = int(refused.value.problem.split()[1])
    assert refused.value.hint.startswith(f"ask for fewer sizes: --sizes {number - 1} at most")
    assert not Path("sweep").exists()


@pytest.mark.parametrize("width", [10**12, 10**18])
def test_a_listed_size_beyond_the_machine_is_refused(
    make_experiment: MakeExperiment, sizes_file: Path, width: int
) -> None:
    sizes_file.write_text(
        f"- {{model.deep.hidden: [4]}}\n- {{model.deep.hidden: [8]}}\n- {{model.deep.hidden: [{width}]}}\n"
    )
    with pytest.raises(ConfigError, match=r"size 3 (costs|has layers of more weights than 64 bits)") as refused:
        scale(make_experiment(), "sweep", sizes_file=sizes_file)
    assert refused.value.hint.startswith("start with a smaller model")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": 0}, "needs three model sizes or more, received 0\n  hint: give three sizes or more: --sizes 5"),
        ({"sizes": -1}, "received -1"),
        ({"seeds": 0}, "one seed or more, received 0 seeds\n  hint: give --seeds 2"),
        ({"split": "foo"}, "a law is fitted on test or validation, received split 'foo'\n  hint: choose test or"),
        ({"split": "train"}, "received split 'train'"),
        ({"sizes_file": "missing.yaml"}, "missing.yaml: no such file\n  hint: name a YAML file with --sizes-file"),
        ({"sizes_file": "."}, ".: is a folder"),
    ],
)
def test_invalid_arguments_are_explained(
    make_experiment: MakeExperiment, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        scale(make_experiment(), "sweep", **arguments)
    assert message in str(refused.value)
    assert not Path("sweep").exists()


def test_a_sweep_is_not_opened_as_a_run(make_experiment: MakeExperiment, sizes_file: Path) -> None:
    scale(make_experiment(training__max_steps=2), "runs/rep", seeds=1, sizes_file=sizes_file)
    with pytest.raises(
        RunFolderError, match="runs/rep: is a scaling sweep, not a run\n  hint: name one of its runs, such as runs/r"
    ):
        open_run("runs/rep")

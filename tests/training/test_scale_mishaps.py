"""Ladders that are asked for wrongly, again with other numbers, or of which a rung diverges."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import MakeExperiment
from tests.training.test_scale import Heard
from tests.training.test_scale import ladder as ladder
from ziggurat.core.errors import ConfigError, DivergedError, RunFolderError
from ziggurat.core.files import locked_folder
from ziggurat.training.experiment import Experiment
from ziggurat.training.run import open_run
from ziggurat.training.scaling.result import ScaleResult
from ziggurat.training.scaling.sweep import scale

SIZES = "".join(f"- {{model.deep.hidden: [{width}]}}\n" for width in (4, 8, 16, 32))
BROKEN = "optimizer: {name: sgd, lr: 1.0e+30}"


@pytest.fixture
def sizes(tmp_path: Path) -> Path:
    path = tmp_path / "sizes.yaml"
    path.write_text(SIZES)
    return path


def test_a_refused_ladder_stays_as_it_was(make_experiment: MakeExperiment, sizes: Path) -> None:
    def make(**changes: Any) -> Experiment:
        return make_experiment(training__max_steps=2, **changes)

    scale(make(), "runs/rep", seeds=1, ladder=sizes)
    before = Path("runs/rep/scale.json").read_bytes()
    for changed in ({"optimizer__lr": 0.1}, {"training__seed": 9, "optimizer__lr": 0.1}):
        with pytest.raises(RunFolderError, match=r"rung 1, seed 3: .*another config\n  optimizer.lr") as refused:
            scale(make(**changed), "runs/rep", seeds=1, ladder=sizes)
        assert refused.value.hint == "name another folder with --run, or delete runs/rep"
    assert Path("runs/rep/scale.json").read_bytes() == before
    assert not Path("runs/rep/rung-01/seed-9").exists()

    sizes.write_text(SIZES.replace("[32]", "[32], optimizer.lr: 0.1"))
    with pytest.raises(RunFolderError, match=r"rung 4, seed 3: ") as refused:
        scale(make(), "runs/rep", seeds=1, ladder=sizes)
    assert refused.value.hint.endswith("or delete runs/rep/rung-04, which is then trained anew")
    assert Path("runs/rep/scale.json").read_bytes() == before

    with (Path("log.csv")).open("a") as log:
        log.write("u1,3,40,1,2,1,0,9999,more\n")
    with pytest.raises(RunFolderError, match=r"rung 1, seed 3: .*holds dataset"):
        scale(make(), "runs/rep", seeds=1, ladder=sizes)
    assert Path("runs/rep/scale.json").read_bytes() == before


def test_fewer_seeds_and_rungs_keep_what_is_finished(make_experiment: MakeExperiment, sizes: Path) -> None:
    experiment = make_experiment(training__max_steps=2)
    whole = scale(experiment, "ladder", seeds=2, ladder=sizes).result
    shutil.rmtree("ladder/rung-02/seed-4/checkpoints")
    Path("ladder/rung-02/seed-4/results.json").unlink()
    sizes.write_text("".join(SIZES.splitlines(keepends=True)[:3]))
    heard = Heard()
    fewer = scale(experiment, "ladder", seeds=1, ladder=sizes, progress=heard).result
    assert "train" not in heard.stages
    assert [len(rung.runs) for rung in fewer.rungs] == [2, 1, 2]
    assert fewer.rungs[0] == whole.rungs[0]
    assert ScaleResult.load("ladder") == fewer
    assert "ladder also holds rung-04, left out: the ladder has 3 rungs" in heard.notes
    assert any("ladder/rung-02/seed-4 is not trained to the end" in note for note in heard.notes)
    sizes.write_text(SIZES)
    again = scale(experiment, "ladder", seeds=2, ladder=sizes).result
    assert [rung.values("test", "log_loss") for rung in again.rungs] == [
        rung.values("test", "log_loss") for rung in whole.rungs
    ]


def test_training_longer_counts_no_shorter_run(make_experiment: MakeExperiment, sizes: Path) -> None:
    scale(make_experiment(training__max_steps=2), "ladder", seeds=2, ladder=sizes)
    longer = scale(make_experiment(training__max_steps=3), "ladder", seeds=1, ladder=sizes).result
    assert [[run.steps for run in rung.runs] for rung in longer.rungs] == [[3]] * 4


def test_a_diverged_rung_is_left_out_and_tried_again(make_experiment: MakeExperiment, sizes: Path) -> None:
    experiment = make_experiment(training__max_steps=6, training__log_every=1)
    sizes.write_text(SIZES.replace("[16]", f"[16], {BROKEN}"))
    heard = Heard()
    scaled = scale(experiment, "ladder", seeds=2, ladder=sizes, progress=heard)
    assert (scaled.signal, scaled.missing) == (None, 0)
    assert [len(rung.runs) for rung in scaled.result.rungs] == [2, 2, 0, 2]
    lost = scaled.result.rungs[2].diverged
    assert [(run.seed, run.folder) for run in lost] == [(3, "rung-03/seed-3"), (4, "rung-03/seed-4")]
    assert all(run.reason.startswith("the training loss became ") for run in lost)
    assert scaled.result.fit() is not None
    assert ScaleResult.load("ladder") == scaled.result
    assert scaled.result.caveats[0].startswith("Rung 3, seed 3, diverged and is left out: the training loss became ")
    assert sum("the ladder goes on without it" in note for note in heard.notes) == 2

    again = Heard()
    assert scale(experiment, "ladder", seeds=2, ladder=sizes, progress=again).result == scaled.result
    assert again.stages.count("train") == 2

    shutil.rmtree("ladder/rung-03")
    sizes.write_text(SIZES)
    fixed = scale(experiment, "ladder", seeds=2, ladder=sizes).result
    assert [len(rung.runs) for rung in fixed.rungs] == [2, 2, 2, 2]
    assert not any("diverged" in caveat for caveat in fixed.caveats)


def test_too_many_diverged_rungs_leave_no_law(make_experiment: MakeExperiment, ladder: Path) -> None:
    text = ladder.read_text().replace("optimizer.lr: 0.002", BROKEN)
    ladder.write_text(text)
    with pytest.raises(DivergedError, match=r"2 of 3 rungs have a finished run, a law needs 3\n  rung 3, seed 3: the"):
        scale(make_experiment(training__log_every=1, training__epochs=1), "ladder", seeds=1, ladder=ladder)
    kept = ScaleResult.load("ladder")
    assert [len(rung.runs) for rung in kept.rungs] == [1, 1, 0]
    assert kept.rungs[2].diverged[0].seed == 3


def test_other_errors_stop_the_ladder(make_experiment: MakeExperiment, ladder: Path) -> None:
    experiment = make_experiment(training__max_steps=2)
    scale(experiment, "ladder", seeds=1, ladder=ladder)
    with (
        locked_folder(Path("ladder/rung-02/seed-4"), "training"),
        pytest.raises(RunFolderError, match=r"rung 2, seed 4: .*another process is training"),
    ):
        scale(experiment, "ladder", seeds=2, ladder=ladder)
    assert [len(rung.runs) for rung in ScaleResult.load("ladder").rungs] == [2, 1, 1]


@pytest.mark.parametrize("rungs", [60, 5000])
def test_sizes_beyond_the_machine_are_refused_with_their_cost(make_experiment: MakeExperiment, rungs: int) -> None:
    cost = (
        r"rung \d\d costs \S+ FLOPs per example and \S+ dense parameters: [\d,]+ GiB of weights, and this machine has"
    )
    with pytest.raises(ConfigError, match=cost) as refused:
        scale(make_experiment(), "ladder", rungs=rungs)
    number = int(refused.value.problem.split()[1])
    assert refused.value.hint.startswith(f"ask for fewer rungs: --sizes {number - 1} at most")
    assert not Path("ladder").exists()


@pytest.mark.parametrize("width", [10**12, 10**18])
def test_a_listed_size_beyond_the_machine_is_refused(make_experiment: MakeExperiment, ladder: Path, width: int) -> None:
    ladder.write_text(
        f"- {{model.deep.hidden: [4]}}\n- {{model.deep.hidden: [8]}}\n- {{model.deep.hidden: [{width}]}}\n"
    )
    with pytest.raises(ConfigError, match=r"rung 3 (costs|has layers of more weights than 64 bits)") as refused:
        scale(make_experiment(), "ladder", ladder=ladder)
    assert refused.value.hint.startswith("begin with a smaller model")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"rungs": 0}, "a power law has three constants, and the ladder has 0 rungs\n  hint: give three rungs"),
        ({"rungs": -1}, "the ladder has -1 rungs"),
        ({"seeds": 0}, "one seed or more, received 0 seeds\n  hint: give --seeds 2"),
        ({"split": "foo"}, "a law is fitted on test or validation, received split 'foo'\n  hint: choose test or"),
        ({"split": "train"}, "received split 'train'"),
        ({"ladder": "missing.yaml"}, "missing.yaml: no such file\n  hint: name a YAML file with --sizes-file"),
        ({"ladder": "."}, ".: is a folder"),
    ],
)
def test_what_cannot_be_asked_is_explained(
    make_experiment: MakeExperiment, asked: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        scale(make_experiment(), "ladder", **asked)
    assert message in str(refused.value)
    assert not Path("ladder").exists()


def test_a_ladder_is_no_run(make_experiment: MakeExperiment, ladder: Path) -> None:
    scale(make_experiment(training__max_steps=2), "runs/rep", seeds=1, ladder=ladder)
    with pytest.raises(
        RunFolderError, match="runs/rep: is a ladder, not a run\n  hint: name one of its runs, as runs/r"
    ):
        open_run("runs/rep")

"""``precision: auto`` takes what the device multiplies in hardware, and a run keeps what it began with."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.training.conftest import MakeExperiment
from ziggurat.cli.doctor.checks import bf16_check, compiler_check
from ziggurat.training import api
from ziggurat.training.run_folder import precision
from ziggurat.training.run_folder.precision import choices, multiplies_bf16

CPU = torch.device("cpu")


@pytest.mark.parametrize(("in_hardware", "expected"), [(True, "bf16"), (False, "fp32")])
def test_a_run_records_what_auto_took_and_is_resumed_with_it(
    in_hardware: bool, expected: str, make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "multiplies_bf16", lambda device: in_hardware)
    experiment = make_experiment(training__precision="auto", training__max_steps=4)
    run = api.train(experiment, "run", stop_after=2).run
    assert api.load_run(run.folder).experiment.training.precision == expected
    monkeypatch.setattr(precision, "multiplies_bf16", lambda device: not in_hardware)
    resumed = api.train(experiment, "run")
    assert resumed.step == 4
    assert api.load_run(run.folder).experiment.training.precision == expected
    same = api.train(make_experiment(training__precision=expected, training__max_steps=4), "stated")
    assert resumed.results is not None
    assert same.results is not None
    assert resumed.results["figures"] == same.results["figures"]


def test_a_stated_precision_is_taken_as_it_is(make_experiment: MakeExperiment, tmp_path: Path) -> None:
    for stated in ("fp32", "bf16"):
        assert choices(make_experiment(training__precision=stated), tmp_path, CPU).precision == stated


def test_doctor_tells_what_auto_would_take() -> None:
    found = bf16_check()
    taken = "bf16" if multiplies_bf16(CPU) else "fp32"
    if not torch.cuda.is_available():
        assert found.state == ("ok" if taken == "bf16" else "note")
        assert found.found.startswith("the processor")


def test_auto_compiles_on_a_gpu_with_a_compiler_only(
    make_experiment: MakeExperiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    auto, cuda = make_experiment(training__compile="auto"), torch.device("cuda")
    monkeypatch.setattr(precision, "cpp_compiler", lambda: "/usr/bin/g++")
    assert not choices(auto, tmp_path, CPU).compiled
    assert choices(auto, tmp_path, cuda).compiled
    monkeypatch.setattr(precision, "cpp_compiler", lambda: None)
    assert not choices(auto, tmp_path, cuda).compiled
    assert choices(make_experiment(training__compile=True), tmp_path, CPU).compiled


def test_a_run_records_whether_it_is_compiled(make_experiment: MakeExperiment) -> None:
    run = api.train(make_experiment(training__compile="auto", training__max_steps=2), "run").run
    assert api.load_run(run.folder).experiment.training.compile is False


def test_a_compiler_that_fails_does_not_end_the_run(
    make_experiment: MakeExperiment, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch._inductor.config as inductor

    plain = api.train(make_experiment(training__max_steps=3), "plain")
    torch.compiler.reset()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    # Torch's own patch: monkeypatch would delete the option at the test's end, for every later test of the process.
    with (
        inductor.patch({"cpp.cxx": ("/no/such/compiler",)}),
        pytest.warns(RuntimeWarning, match="torch.compile failed"),
    ):
        uncompiled = api.train(make_experiment(training__max_steps=3, training__compile=True), "uncompiled")
    assert plain.results is not None
    assert uncompiled.results is not None
    assert uncompiled.results["figures"] == plain.results["figures"]


def test_doctor_tells_whether_there_is_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/opt/bin/clang++" if name == "clang++" else None)
    assert compiler_check().state == "ok"
    assert compiler_check().found.startswith("/opt/bin/clang++")
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert compiler_check().state == "note"

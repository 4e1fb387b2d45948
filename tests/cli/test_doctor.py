"""``ziggurat doctor`` on real metadata and subprocesses, and on small fakes placed before them on the path."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from ziggurat.cli.doctor.checks import accelerator_checks, cpu_quota, library_checks, lookup_check, threads_check
from ziggurat.cli.main import app
from ziggurat.core import versions
from ziggurat.core.control_group import available_bytes
from ziggurat.core.engine import (
    Installed,
    check_engine,
    engine_problems,
    explain_missing_module,
    install_commands,
    installed_engine,
)
from ziggurat.core.errors import ConfigError, EnvironmentMismatch
from ziggurat.training.placement import kernel_benchmark as kernels

CUDA = Installed(torch="2.13.0", torchrec="1.8.0", fbgemm={"cuda": "1.8.0"}, torch_cuda="13.0")
GOOD = Installed(torch="2.13.0+cpu", torchrec="1.8.0", fbgemm={"cpu": "1.8.0"}, torch_cuda=None)


def distribution(folder: Path, name: str, version: str) -> None:
    """Writes the metadata that makes a distribution appear installed."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    info.joinpath("METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Creates a folder that is first on the search path of metadata."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("COLUMNS", "250")
    return folder


def doctor() -> Result:
    return CliRunner().invoke(app, ["doctor"])


def test_the_tested_triple_has_no_problem() -> None:
    assert engine_problems(GOOD) == []
    assert engine_problems(installed_engine()) == []
    check_engine()


@pytest.mark.parametrize(
    ("found", "problem", "hint"),
    [
        (Installed(None, "1.8.0", {"cpu": "1.8.0"}, None), "torch is not installed", "pip install torch==2.13.0"),
        (Installed("2.14.1", "1.8.0", {"cpu": "1.8.0"}, None), "torch is 2.14.1, but 2.13.0", "torch==2.13.0"),
        (Installed("2.13.0", "1.9.2", {"cpu": "1.8.0"}, None), "torchrec is 1.9.2", "--no-deps torchrec==1.8.0"),
        (Installed("2.13.0", None, {"cpu": "1.8.0"}, None), "torchrec is not installed", "--no-deps torchrec==1.8.0"),
        (Installed("2.13.0", "1.8.0", {}, None), "fbgemm is not installed", "fbgemm-gpu-cpu==1.8.0"),
        (Installed("2.13.0", "1.8.0", {"cpu": "1.7.0"}, None), "fbgemm-gpu-cpu is 1.7.0", "fbgemm-gpu-cpu==1.8.0"),
        (Installed("2.13.0+cpu", "1.8.0", {"cuda": "1.8.0"}, None), "needs a CUDA build of torch", "fbgemm-gpu-cpu"),
        (
            Installed("2.13.0", "1.8.0", {"cpu": "1.8.0", "cuda": "1.8.0"}, "13.0"),
            "both installed",
            "uninstall -y fbgemm-gpu-cpu fbgemm-gpu && ",
        ),
    ],
)
def test_each_mismatch_is_named_with_its_hint(found: Installed, problem: str, hint: str) -> None:
    problems = engine_problems(found)
    assert len(problems) == 1
    assert problem in problems[0][0]
    assert hint in problems[0][1]


def test_without_an_engine_two_commands_install_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `pip install ziggurat`: torch, fbgemm and torchrec's needs first, then torchrec alone."""
    monkeypatch.setenv("ZIGGURAT_FLAVOUR", "cpu")
    monkeypatch.delenv("TORCH_INDEX", raising=False)
    monkeypatch.setattr(sys, "executable", "/a folder/python")
    nothing = Installed(None, None, {}, None)
    ((problem, hint),) = engine_problems(nothing)
    assert problem == "torch, torchrec and fbgemm-gpu-cpu are not installed"
    needs = "tensordict torchmetrics==1.0.3 tqdm pyre-extensions iopath psutil"
    assert hint.split(" && ") == [
        f"'/a folder/python' -m pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0 {needs}",
        "'/a folder/python' -m pip install --no-deps torchrec==1.8.0",
    ]
    assert [check.state for check in library_checks(nothing)] == ["ok"]
    monkeypatch.setenv("ZIGGURAT_FLAVOUR", "cuda")
    assert "torch===2.13.0 fbgemm-gpu==1.8.0" in engine_problems(nothing)[0][1]
    monkeypatch.setenv("TORCH_INDEX", "https://wheels.example/cu130")
    assert install_commands("cuda")[0].endswith("pip install --index-url https://wheels.example/cu130 torch==2.13.0")


def test_the_needs_of_torchrec_are_those_that_the_installer_reads() -> None:
    text = (Path(__file__).resolve().parents[2] / "requirements/torchrec-needs.txt").read_text(encoding="utf-8")
    assert tuple(line for line in text.splitlines() if not line.startswith("#")) == versions.TORCHREC_NEEDS


def test_a_failed_import_is_explained_where_the_module_is_known() -> None:
    explained = explain_missing_module(ModuleNotFoundError("No module named 'iopath'", name="iopath.common"))
    assert explained is not None
    assert explained.problem == "iopath is not installed"
    assert f"{sys.executable} -m pip install iopath" in explained.hint
    assert explain_missing_module(ModuleNotFoundError("No module named 'theirs'", name="theirs")) is None


def test_a_cuda_machine_gets_a_cuda_torch() -> None:
    """`===` keeps pip from a local CPU build that `==` would match."""
    assert versions.engine_requirements("cuda") == ["torch===2.13.0", "fbgemm-gpu==1.8.0"]
    assert versions.engine_requirements("cuda", torch_index=True)[0] == "torch==2.13.0"
    assert versions.engine_requirements("cpu") == ["torch==2.13.0", "fbgemm-gpu-cpu==1.8.0"]


def test_the_check_before_training_imports_nothing_of_the_engine(tmp_path: Path) -> None:
    code = "import sys; from ziggurat.core.engine import check_engine\n"
    code += "try: check_engine()\nexcept ValueError as error: print(error)\n"
    code += "print({'torch', 'torchrec', 'fbgemm_gpu', 'numpy'} & set(sys.modules))"
    distribution(tmp_path, "torchrec", "1.9.2")
    run = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        check=True,
    )
    assert "torchrec is 1.9.2, but 1.8.0 is needed" in run.stdout
    assert "--no-deps torchrec==1.8.0" in run.stdout
    assert run.stdout.endswith("set()\n")


@pytest.mark.usefixtures("path")
def test_a_working_machine_passes() -> None:
    result = doctor()
    assert result.exit_code == 0, result.output
    assert "everything that ziggurat needs is installed" in result.output
    assert "one lookup on" in result.output


def test_a_mismatch_is_reported_and_the_engine_is_not_tried(path: Path) -> None:
    distribution(path, "torch", "2.14.1")
    distribution(path, "polars", "0.1.0")
    result = doctor()
    assert result.exit_code == 1
    needed = "torch is 2.14.1, but 2.13.0 is needed: torch 2.13.0, torchrec 1.8.0 and fbgemm 1.8.0 load together"
    assert needed in result.output
    assert f"hint: {sys.executable} -m pip install torch==2.13.0" in result.output
    assert "polars is 0.1.0, but >=1.30 is needed" in result.output
    assert "pip install 'polars>=1.30'" in result.output
    assert "not tried, fix the above first" in result.output


def test_the_check_before_training_names_the_hint(path: Path) -> None:
    distribution(path, "torchrec", "1.9.2")
    with pytest.raises(EnvironmentMismatch, match=r"torchrec is 1\.9\.2") as caught:
        check_engine()
    assert "--no-deps torchrec==1.8.0" in caught.value.hint
    assert "ziggurat doctor" in caught.value.hint


def test_a_crash_on_import_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "fbgemm_gpu"
    package.mkdir()
    package.joinpath("__init__.py").write_text("import os; os.abort()")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    check = lookup_check()
    assert check.state == "fail"
    assert "crashed with SIGABRT" in check.found


@pytest.mark.parametrize(
    ("found", "driver", "state", "text", "hint"),
    [
        (
            GOOD,
            "580.65.06",
            "note",
            "but the CPU flavour is installed and leaves it idle",
            "ZIGGURAT_FLAVOUR=cuda make install",
        ),
        (CUDA, "580.65.06", "ok", "2 × NVIDIA H100 80GB HBM3, driver 580.65.06", ""),
        (CUDA, "570.10", "fail", "too old for CUDA 13.0", "update the NVIDIA driver to 580 or newer"),
        (GOOD, None, "note", "none: training runs on the CPU", ""),
        (CUDA, None, "fail", "nvidia-smi finds no NVIDIA driver", "ZIGGURAT_FLAVOUR=cpu make install"),
    ],
)
def test_accelerators(
    found: Installed,
    driver: str | None,
    state: str,
    text: str,
    hint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Uses a fake nvidia-smi that lists two devices, or fails as the real one does without a driver."""
    program = tmp_path / "nvidia-smi"
    line = f"echo '{driver}, NVIDIA H100 80GB HBM3'"
    program.write_text(f"#!/bin/sh\n{line}\n{line}\n" if driver else "#!/bin/sh\necho failed\nexit 9\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (check,) = accelerator_checks(found)
    assert check.state == state
    assert text in check.found
    assert hint in check.hint


@pytest.mark.parametrize(
    ("cores", "quota", "wanted", "state", "hint"),
    [
        (8, None, "", "ok", ""),
        (8, None, "8", "ok", ""),
        (8, 2, "", "note", "export OMP_NUM_THREADS=2"),  # a container of two cores on a machine of eight
        (8, None, "16", "note", "export OMP_NUM_THREADS=8"),
        (8, None, "1", "ok", ""),  # chosen by the user
        (8, 2, "1", "ok", ""),
        (8, None, "0", "ok", ""),
        (8, None, "many", "ok", ""),
    ],
)
def test_threads(cores: int, quota: int | None, wanted: str, state: str, hint: str) -> None:
    check = threads_check(cores, quota, wanted)
    assert (check.state, check.hint) == (state, hint)


def test_the_source_of_the_thread_count_is_named() -> None:
    assert threads_check(8, None, "3").found == "3 of 8 cores, by OMP_NUM_THREADS"


def test_limits_of_a_container_are_respected(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal: 16000000 kB\nMemAvailable: 8000000 kB\nHugePages_Total: 0\n")
    groups = tmp_path / "sys/fs/cgroup"
    groups.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert available_bytes(tmp_path) == 8_192_000_000
    assert cpu_quota(tmp_path) is None
    (groups / "memory.max").write_text("3000000000\n")
    (groups / "memory.current").write_text("1000000000\n")
    (groups / "cpu.max").write_text("150000 100000\n")
    assert available_bytes(tmp_path) == 2_000_000_000
    assert cpu_quota(tmp_path) == 2
    (groups / "cpu.max").write_text("max 100000\n")
    assert cpu_quota(tmp_path) is None


def test_costs_of_this_machine_are_measured_and_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "MAX_BYTES", 10**8)  # gigabytes of fresh pages take seconds
    done = CliRunner().invoke(app, ["doctor", "--measure", "--sets", "20", "--out", str(tmp_path / "kernels")])
    assert done.exit_code == 0, done.output
    assert "trained on 18 sets of tables. On 2 held-out sets: median error" in done.stdout
    assert (tmp_path / "kernels" / "network.safetensors").is_file()
    with pytest.raises(ConfigError, match=r"--sets 30: has no effect without --measure"):
        CliRunner().invoke(app, ["doctor", "--sets", "30"], catch_exceptions=False)
    refused = CliRunner().invoke(app, ["doctor", "--measure", "--sets", "3"])
    assert refused.exit_code == 2

"""The wheel contains all files, and works without the engine as far as documented.

It is installed in a new environment, outside the checkout, with links to the light dependencies of the running
environment. torch, torchrec, fbgemm and the libraries that need torch are left out; ``make wheel`` installs all of them
from the package index instead.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

import ziggurat

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = Path(ziggurat.__file__).parent
ENGINE = ("torch", "torchrec", "fbgemm", "tensordict", "torchgen", "functorch", "ziggurat", "_editable")
"""Prefixes of packages that are not linked into the new environment; ``torch`` also excludes torchmetrics."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=REPOSITORY, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of executables of a new environment with the wheel and its light dependencies."""
    folder = tmp_path_factory.mktemp("installed")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    linked = folder / "linked"
    linked.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(ENGINE) and entry.suffix != ".pth":
            (linked / entry.name).symlink_to(entry)
    (packages / "linked.pth").write_text(f"{linked}\n")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "venv/bin/python")]
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--quiet", str(wheel)], check=True)
    return folder / "venv/bin"


def run(environment: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "ZIGGURAT", "TORCH"))}
    return subprocess.run(
        [str(environment / "ziggurat"), *arguments],
        cwd=folder,
        env={**clean, "ZIGGURAT_FLAVOUR": "cpu", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheel_holds_every_file_of_the_package_and_the_licence(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(f"ziggurat-{ziggurat.__version__}.dist-info/METADATA").decode()
        licence = archive.read(f"ziggurat-{ziggurat.__version__}.dist-info/licenses/LICENSE").decode()
    present = {
        f"ziggurat/{path.relative_to(PACKAGE).as_posix()}"
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packaged = {name for name in names if name.startswith("ziggurat/")}
    assert packaged == present
    assert packaged >= {
        "ziggurat/py.typed",
        "ziggurat/storage/native.c",
        "ziggurat/planning/autoshard/shipped/network.safetensors",
        "ziggurat/planning/autoshard/shipped/policy.safetensors",
    }
    assert all(name.startswith(("ziggurat/", "ziggurat-")) for name in names)
    assert f"Version: {ziggurat.__version__}\n" in metadata
    assert "License-Expression: Apache-2.0\n" in metadata
    assert licence == (REPOSITORY / "LICENSE").read_text(encoding="utf-8")


def test_without_the_engine_doctor_names_the_commands_that_install_it(environment: Path, tmp_path: Path) -> None:
    version = run(environment, tmp_path, "--version")
    assert (version.returncode, version.stdout) == (0, f"ziggurat {ziggurat.__version__}\n"), version.stderr
    doctor = run(environment, tmp_path, "doctor")
    assert doctor.returncode == 1, doctor.stderr
    assert doctor.stderr == ""
    assert "torch, torchrec and fbgemm-gpu-cpu are not installed" in doctor.stdout
    (hint,) = [line for line in doctor.stdout.splitlines() if line.startswith("  hint: ")]
    first, second = hint.removeprefix("  hint: ").split(" && ")
    python = f"{environment.resolve() / 'python'}"
    assert first.startswith(f"{python}")
    assert "-m pip install torch==2.13.0 fbgemm-gpu-cpu==1.8.0 tensordict" in first
    assert second.endswith("-m pip install --no-deps torchrec==1.8.0")
    assert "1 to fix" in doctor.stdout


def test_without_the_engine_generate_and_init_work(environment: Path, tmp_path: Path) -> None:
    generated = run(environment, tmp_path, "generate", "shop.csv", "--rows", "2000")
    assert generated.returncode == 0, generated.stderr
    drafted = run(environment, tmp_path, "init", "shop.csv", "--out", "exp.yaml")
    assert drafted.returncode == 0, drafted.stderr
    assert "features:" in (tmp_path / "exp.yaml").read_text(encoding="utf-8")
    for command in (("train", "exp.yaml"), ("prepare", "exp.yaml"), ("evaluate", "runs/shop"), ("schema",)):
        refused = run(environment, tmp_path, *command)
        assert (refused.returncode, refused.stdout) == (1, ""), command
        problem, hint = refused.stderr.splitlines()
        assert problem.startswith("error: the engine cannot be loaded: torch, torchrec and fbgemm-gpu-cpu are not")
        assert "-m pip install --no-deps torchrec==1.8.0" in hint


def test_without_the_engine_the_python_error_names_the_commands(environment: Path, tmp_path: Path) -> None:
    code = "import ziggurat\nprint(ziggurat.__version__)\n"
    code += "try: ziggurat.train\nexcept ziggurat.EnvironmentMismatch as error: print(error.hint)\n"
    answer = subprocess.run(
        [str(environment / "python"), "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    version, hint = answer.stdout.splitlines()
    assert version == ziggurat.__version__
    assert "--no-deps torchrec==1.8.0" in hint

"""The real installer on a project of tiny packages: real venv and pip, wheels from a local folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
VERSIONS = {
    "torch": "2.13.0", "torchrec": "1.8.0", "fbgemm-gpu-cpu": "1.8.0", "fbgemm-gpu": "1.8.0",
    "setuptools": "80.0", "wheel": "0.45", "hatchling": "1.27", "editables": "0.5", "tqdm": "4.60", "pytest": "8.0",
}  # fmt: skip
# A minimal build backend for editable installs, so that no build tool must be downloaded.
BACKEND = """
import zipfile
def get_requires_for_build_editable(config_settings=None): return []
def prepare_metadata_for_build_editable(folder, config_settings=None):
    import os
    os.makedirs(folder + "/ziggurat-0.1.0.dist-info")
    open(folder + "/ziggurat-0.1.0.dist-info/METADATA", "w").write(META)
    return "ziggurat-0.1.0.dist-info"
WHEEL = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
META = "Metadata-Version: 2.1\\nName: ziggurat\\nVersion: 0.1.0\\n"
def build_editable(folder, config_settings=None, metadata_directory=None):
    name = "ziggurat-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(folder + "/" + name, "w") as wheel:
        wheel.writestr("ziggurat-0.1.0.dist-info/METADATA", META)
        wheel.writestr("ziggurat-0.1.0.dist-info/WHEEL", WHEEL)
        wheel.writestr("ziggurat-0.1.0.dist-info/RECORD", "")
    return name
"""


@pytest.fixture(scope="module")
def fresh_environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates an environment with only pip; creating one takes seconds, copying it does not."""
    folder = tmp_path_factory.mktemp("environment") / ".venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copies the installer to a small project, with an index that also has a too new version of every package."""
    root = tmp_path / "project"
    for file in ("tools/install.py", "src/ziggurat/core/versions.py", "src/ziggurat/_version.py"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / file, root / file)
    (root / "requirements").mkdir()
    (root / "requirements/torchrec-needs.txt").write_text("tqdm\n")
    (root / "requirements/dev.txt").write_text("pytest\n")
    (root / "requirements/lock.txt").write_text("tqdm==4.60\npytest==8.0\nsetuptools==80.0\n")
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "ziggurat"\nversion = "0.1.0"\n'
    )
    (root / "backend.py").write_text(BACKEND)
    index = tmp_path / "index"
    index.mkdir()
    for name, version in VERSIONS.items():
        requires = ["fbgemm-gpu==1.8.0"] if name == "torchrec" else []
        wheel(index, name, version, requires)
        wheel(index, name, "999.0", requires)
    return root


def wheel(folder: Path, name: str, version: str, requires: list[str]) -> None:
    plain = name.replace("-", "_")
    info = f"{plain}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{plain}-{version}-py3-none-any.whl", "w") as archive:
        needs = "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


def environment(project: Path, **variables: str) -> dict[str, str]:
    index = project.parent / "index"
    return {
        **os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index), "PIP_NO_CACHE_DIR": "1", "PIP_RETRIES": "0",
        "ZIGGURAT_FLAVOUR": "cpu", "TORCH_INDEX": "", **variables,
    }  # fmt: skip


def install(project: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(project / "tools/install.py"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(project, **variables), check=False, timeout=300
    )


def installed(project: Path) -> dict[str, str]:
    (packages,) = (project / ".venv/lib").glob("*/site-packages")
    return {found.name: found.version for found in metadata.distributions(path=[str(packages)])}


def test_the_locked_versions_are_installed_and_a_second_run_does_nothing(
    project: Path, fresh_environment: Path
) -> None:
    shutil.copytree(fresh_environment, project / ".venv", symlinks=True)
    first = install(project)
    assert first.returncode == 0, first.stderr
    found = installed(project)
    expected = {name: VERSIONS[name] for name in ("torch", "torchrec", "fbgemm-gpu-cpu", "setuptools", "tqdm")}
    assert {name: found.get(name) for name in expected} == expected
    assert "fbgemm-gpu" not in found  # torchrec declares it; it must not be installed
    assert "pytest" not in found
    before = (project / ".venv/install.log").stat().st_mtime_ns
    second = install(project)
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert (project / ".venv/install.log").stat().st_mtime_ns == before
    # A changed lock is noticed, the development tools are added, and stay after a later plain install.
    (project / "requirements/lock.txt").write_text("tqdm==999.0\npytest==8.0\n")
    assert install(project, "--dev").returncode == 0
    assert (installed(project)["tqdm"], installed(project)["pytest"]) == ("999.0", "8.0")
    assert install(project).stdout == ""
    # Without a network the hint is shown, and installed packages are kept.
    (project / "requirements/lock.txt").write_text("wheel==1.0\n")
    offline = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_RETRIES": "1"}
    run = install(project, **offline, PIP_INDEX_URL="http://127.0.0.1:9/simple", NO_PROXY="127.0.0.1")
    assert run.returncode == 1
    assert "build tools: failed" in run.stdout
    assert "hint: check the network" in run.stderr
    assert "HTTPS_PROXY" in run.stderr
    assert "install.log" in run.stderr


def test_a_failed_install_resumes_and_an_interrupted_one_starts_again(project: Path) -> None:
    (project.parent / "index/torch-2.13.0-py3-none-any.whl").unlink()
    failed = install(project)
    assert failed.returncode == 1
    assert "torch==2.13.0" in failed.stderr
    assert "TORCH_INDEX" in failed.stderr
    wheel(project.parent / "index", "torch", "2.13.0", [])
    (project / ".venv/kept").touch()

    marker = project / ".venv/ziggurat-install.unfinished"
    assert not marker.exists()
    command = [sys.executable, str(project / "tools/install.py")]
    with subprocess.Popen(command, env=environment(project), stdout=subprocess.DEVNULL, start_new_session=True) as run:
        deadline = time.monotonic() + 60
        while not marker.exists():
            assert run.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.killpg(run.pid, signal.SIGKILL)
    assert marker.exists()
    assert not (project / ".venv/ziggurat-install.json").exists()
    assert (project / ".venv/kept").exists()

    assert install(project).returncode == 0
    assert not (project / ".venv/kept").exists()
    assert not marker.exists()
    assert installed(project)["torch"] == "2.13.0"


def test_impossible_requests_are_refused(project: Path) -> None:
    run = install(project, ZIGGURAT_FLAVOUR="gpu")
    assert run.returncode == 1
    assert "ZIGGURAT_FLAVOUR is 'gpu'" in run.stderr
    assert "cpu or cuda" in run.stderr
    (project / "mine").mkdir()
    (project / "mine/thesis.tex").write_text("precious")
    run = install(project, "--venv", str(project / "mine"))
    assert run.returncode == 1
    assert "is no virtual environment" in run.stderr
    assert (project / "mine/thesis.tex").read_text() == "precious"


def test_cuda_is_chosen_where_nvidia_smi_works_and_torch_comes_from_the_index_named(
    project: Path, fresh_environment: Path, tmp_path: Path
) -> None:
    shutil.copytree(fresh_environment, project / ".venv", symlinks=True)
    program = tmp_path / "bin/nvidia-smi"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100'\n")
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    own = tmp_path / "torch-index/torch"
    own.mkdir(parents=True)
    wheel(own, "torch", "2.13.0+cu130", [])
    link = '<a href="torch-2.13.0+cu130-py3-none-any.whl">torch-2.13.0+cu130-py3-none-any.whl</a>'
    own.joinpath("index.html").write_text(f"<!DOCTYPE html><html><body>{link}</body></html>")
    index = own.parent.as_uri()
    run = install(project, ZIGGURAT_FLAVOUR="", PATH=path, PIP_NO_INDEX="", TORCH_INDEX=index, PIP_INDEX_URL=index)
    assert run.returncode == 0, run.stderr
    assert "cuda flavour" in run.stdout
    found = installed(project)
    assert (found["torch"], found["fbgemm-gpu"]) == ("2.13.0+cu130", "1.8.0")
    assert "fbgemm-gpu-cpu" not in found


def test_an_old_python_is_rejected_with_a_message(tmp_path: Path) -> None:
    """The file must parse on old versions to print its message: no syntax newer than Python 3.7 outside annotations."""
    import ast

    for file in ("tools/install.py", "src/ziggurat/core/versions.py"):
        ast.parse((REPOSITORY / file).read_text(), feature_version=(3, 7))
    code = "import sys, runpy; sys.version_info = (3, 9, 1, 'final', 0)\n"
    code += f"sys.argv = ['install.py', '--venv', {str(tmp_path)!r}]\n"
    code += f"runpy.run_path({str(REPOSITORY / 'tools/install.py')!r}, run_name='__main__')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "ziggurat needs 3.11 or newer" in run.stderr
    assert "PYTHON=/path/to/python3.11" in run.stderr

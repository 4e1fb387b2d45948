"""Checks, before any import, that the engine (torch, torchrec, fbgemm) is the tested triple of versions.

A mismatched triple crashes on import: fbgemm's shared library aborts on an undefined symbol, or torchrec imports only
half. The check reads the installed distributions' metadata, which takes a few milliseconds and imports nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from ziggurat.core import versions
from ziggurat.core.errors import EnvironmentMismatch

Flavour = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True)
class Installed:
    """The installed versions of the engine according to their metadata; None for a missing distribution.

    Attributes:
        torch: version with its local part, such as ``2.13.0+cpu``.
        torchrec: version.
        fbgemm: flavour -> version. If both flavours are installed they have overwritten each other's files.
        torch_cuda: the CUDA release that torch was built for, such as ``13.0``; None for a CPU build.
    """

    torch: str | None
    torchrec: str | None
    fbgemm: dict[Flavour, str]
    torch_cuda: str | None

    @property
    def is_empty(self) -> bool:
        """Whether no part of the engine is installed."""
        return self.torch is None and self.torchrec is None and not self.fbgemm

    @property
    def flavour(self) -> Flavour:
        """The flavour of the installed fbgemm; ``cpu`` if none is installed."""
        return "cuda" if "cuda" in self.fbgemm else "cpu"


def installed_engine() -> Installed:
    """Reads the metadata of torch, torchrec and both flavours of fbgemm."""
    fbgemm: dict[Flavour, str] = {}
    for flavour in ("cpu", "cuda"):
        version = installed_version(versions.FBGEMM_DISTRIBUTION[flavour])
        if version is not None:
            fbgemm[flavour] = version
    return Installed(installed_version("torch"), installed_version("torchrec"), fbgemm, _torch_cuda())


def library_versions() -> dict[str, str]:
    """Returns distribution -> version of the installed libraries that affect results."""
    names = ("ziggurat", "torch", "torchrec", *versions.FBGEMM_DISTRIBUTION.values(), "safetensors")
    found = {name: installed_version(name) for name in names}
    return {name: version for name, version in found.items() if version is not None}


def installed_version(distribution: str) -> str | None:
    """Returns the installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def engine_problems(found: Installed) -> list[tuple[str, str]]:
    """Returns (problem, command that fixes it) for each difference of ``found`` from the tested triple."""
    if found.is_empty:
        suited = suited_flavour()
        missing = f"torch, torchrec and {versions.FBGEMM_DISTRIBUTION[suited]} are not installed"
        return [(missing, " && ".join(install_commands(suited)))]
    problems: list[tuple[str, str]] = []
    flavour = found.flavour
    if len(found.fbgemm) == 2:
        both = " and ".join(versions.FBGEMM_DISTRIBUTION.values())
        keep = engine_install_command("cuda" if found.torch_cuda else "cpu", "fbgemm")
        return [(f"{both} are both installed and overwrite one another's files", f"{uninstall_command()} && {keep}")]
    if found.torch is None:
        problems.append(("torch is not installed", engine_install_command(flavour, "torch")))
    elif _release(found.torch) != versions.TORCH:
        problems.append((_differs("torch", found.torch, versions.TORCH), engine_install_command(flavour, "torch")))
    if not found.fbgemm:
        problems.append(("fbgemm is not installed", engine_install_command(flavour, "fbgemm")))
    for each, version in found.fbgemm.items():
        name = versions.FBGEMM_DISTRIBUTION[each]
        if _release(version) != versions.FBGEMM:
            problems.append((_differs(name, version, versions.FBGEMM), engine_install_command(each, "fbgemm")))
        elif each == "cuda" and found.torch is not None and found.torch_cuda is None:
            problems.append((f"{name} needs a CUDA build of torch, but torch {found.torch} is a CPU build",
                             f"{uninstall_command()} && {engine_install_command('cpu', 'fbgemm')}"))  # fmt: skip
    if found.torchrec is None:
        problems.append(("torchrec is not installed", engine_install_command(flavour, "torchrec")))
    elif _release(found.torchrec) != versions.TORCHREC:
        problem = _differs("torchrec", found.torchrec, versions.TORCHREC)
        problems.append((problem, engine_install_command(flavour, "torchrec")))
    return problems


def check_engine() -> None:
    """Rejects an engine that would crash on import. Takes a few milliseconds and imports nothing of it.

    Raises:
        EnvironmentMismatch: Python is too old, or a part of the triple is missing or of another version.
    """
    if sys.version_info[:2] < versions.PYTHON_MINIMUM:
        raise EnvironmentMismatch(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} is too old", "use Python 3.11 or newer"
        )
    problems = engine_problems(installed_engine())
    if problems:
        raise EnvironmentMismatch(
            "the engine cannot be loaded: " + "; ".join(problem for problem, _ in problems),
            " && ".join(hint for _, hint in problems) + "; `ziggurat doctor` checks the result",
        )


def explain_missing_module(error: ModuleNotFoundError) -> EnvironmentMismatch | None:
    """Explains a failed import of a part of the engine, or of a library that ziggurat requires.

    Returns:
        The error to show instead; None for any other module, which is a bug and keeps its traceback.
    """
    module = (error.name or "").partition(".")[0]
    if module in _ENGINE_MODULES:
        try:
            check_engine()
        except EnvironmentMismatch as mismatch:
            return mismatch
    if module in _LIBRARY_MODULES:
        distribution = _LIBRARY_MODULES[module]
        return EnvironmentMismatch(
            f"{distribution} is not installed",
            f"{pip_install()} {distribution}; `ziggurat doctor` names all that is missing",
        )
    return None


_ENGINE_MODULES = frozenset({"torch", "torchrec", "fbgemm_gpu"})
_LIBRARY_MODULES: dict[str, str] = {versions.MODULES.get(name, name): name for name in versions.LIBRARIES}
"""Top-level module -> the distribution that provides it."""


def suited_flavour() -> Flavour:
    """Returns the flavour to install: ZIGGURAT_FLAVOUR if set, ``cuda`` if nvidia-smi finds a driver, else ``cpu``."""
    chosen = os.environ.get("ZIGGURAT_FLAVOUR", "")
    if chosen in ("cpu", "cuda"):
        return chosen
    return "cpu" if nvidia_driver() is None else "cuda"


def install_commands(flavour: Flavour) -> list[str]:
    """Returns the commands that install the whole engine into this Python, in order.

    torchrec is installed last and without its dependencies, since it requires the CUDA build of fbgemm on any machine.
    If TORCH_INDEX names an index of torch wheels, torch is installed from there.
    """
    index = os.environ.get("TORCH_INDEX", "")
    torch, fbgemm = versions.engine_requirements(flavour, bool(index))
    from_index = [f"{pip_install()} --index-url {shlex.quote(index)} {torch}"] if index else []
    return [
        *from_index,
        f"{pip_install()} {torch} {fbgemm} {' '.join(versions.TORCHREC_NEEDS)}",
        engine_install_command(flavour, "torchrec"),
    ]


def engine_install_command(flavour: Flavour, part: Literal["torch", "fbgemm", "torchrec"]) -> str:
    """Returns the pip command that installs one part of the tested triple into this Python."""
    pip = pip_install()
    torch, fbgemm = versions.engine_requirements(flavour)
    match part:
        case "torch":
            return f"{pip} {torch}"
        case "fbgemm":
            return f"{pip} {fbgemm}"
        case "torchrec":
            return f"{pip} --no-deps torchrec=={versions.TORCHREC}"


def nvidia_driver() -> tuple[str, tuple[str, ...]] | None:
    """Returns (driver version, device names) from ``nvidia-smi``; None if it is missing or fails."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    query = [program, "--query-gpu=driver_version,name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(query, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    rows = [line.split(", ", 1) for line in answer.stdout.splitlines() if ", " in line]
    if answer.returncode != 0 or not rows:
        return None
    return rows[0][0], tuple(name for _, name in rows)


def _torch_cuda() -> str | None:
    """Returns the CUDA release torch was built for.

    It is read from the text of torch's ``version.py``, as importing torch may crash.
    """
    try:
        text = Path(str(metadata.distribution("torch").locate_file("torch/version.py"))).read_text(encoding="utf-8")
    except (metadata.PackageNotFoundError, OSError):
        return None
    found = re.search(r"""^cuda\b[^=]*=\s*['"]([\d.]+)['"]""", text, re.MULTILINE)
    return found.group(1) if found else None


def _release(version: str) -> str:
    """``2.13.0+cpu`` -> ``2.13.0``."""
    return version.partition("+")[0]


def _differs(name: str, found: str, tested: str) -> str:
    triple = f"torch {versions.TORCH}, torchrec {versions.TORCHREC} and fbgemm {versions.FBGEMM}"
    return f"{name} is {found}, but {tested} is needed: {triple} load together"


def pip_install() -> str:
    """Returns the start of a command that installs packages into this Python; safe to paste into a shell."""
    return f"{shlex.quote(sys.executable)} -m pip install"


def uninstall_command() -> str:
    """Returns the command that removes fbgemm, in either flavour, from this Python."""
    return f"{shlex.quote(sys.executable)} -m pip uninstall -y {' '.join(versions.FBGEMM_DISTRIBUTION.values())}"


def cpp_compiler() -> str | None:
    """Returns the path of the C++ compiler that torch.compile finds; None if none is installed."""
    return next((found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))), None)

#!/usr/bin/env python3
"""Install ziggurat and everything it needs into ``.venv``, repeatably; a second run notices that nothing changed.

    python3.11 tools/install.py [--dev]

Run by any Python 3.11 or newer with its standard library alone. Environment:

    ZIGGURAT_FLAVOUR=cpu|cuda   instead of asking ``nvidia-smi``
    TORCH_INDEX=URL             an index for the torch wheel alone, such as PyTorch's own CPU index. Without it torch
                                comes from pip's configured index, whose Linux wheel carries CUDA: larger, but it
                                runs on a CPU too

Every other setting of pip (index, proxy, certificates, ``PIP_FIND_LINKS``) is honoured as pip itself does.
Versions come from ``src/ziggurat/core/versions.py`` (the engine) and ``requirements/lock.txt`` (everything else).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "lock.txt"
TESTS = r"site-packages[/\\].*[/\\]tests?[/\\]"
BUILD_TOOLS = ("setuptools", "wheel", "hatchling", "editables")
FLAVOURS = ("cpu", "cuda")
OFFLINE_SIGNS = (
    "NewConnectionError", "name resolution", "Name or service not known", "Connection refused", "ConnectTimeoutError",
    "Network is unreachable", "ProxyError", "Read timed out", "SSLError", "ReadTimeoutError",
)  # fmt: skip


class InstallError(Exception):
    """Something the user can fix: (what is wrong, how to fix it)."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(f"{problem}\n  hint: {hint}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Install ziggurat into a virtual environment.")
    parser.add_argument("--dev", action="store_true", help="also install the tools that `make test` runs")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv", help="where (default: .venv)")
    options = parser.parse_args(arguments)
    try:
        install(options.venv.resolve(), options.dev)
    except InstallError as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\ninstall: interrupted; run it again to start the environment afresh", file=sys.stderr)
        return 130
    return 0


def install(venv: Path, dev: bool) -> None:
    """Bring ``venv`` to what the requirement files say. The stamp is written last, so an interruption is noticed."""
    versions = load_versions()
    check_python(versions.PYTHON_MINIMUM)
    flavour = choose_flavour()
    stamp, unfinished = venv / "ziggurat-install.json", venv / "ziggurat-install.unfinished"
    wanted = {"fingerprint": fingerprint(venv), "flavour": flavour, "dev": dev}
    if is_current(stamp, wanted) and not unfinished.exists():
        return
    started = time.monotonic()
    print(f"install: {flavour} flavour, Python {sys.version.split()[0]}, into {venv}", flush=True)
    dev = dev or bool(read_stamp(stamp).get("dev"))
    create_environment(venv, afresh=unfinished.exists() or not is_usable(venv))
    stamp.unlink(missing_ok=True)
    unfinished.touch()
    try:
        for title, arguments in steps(versions, flavour, dev):
            run_pip(venv, title, arguments)
        compile_bytecode(venv)
    except InstallError:
        unfinished.unlink()  # pip ended by itself and left whole packages behind: the next run can go on from them
        raise
    stamp.write_text(json.dumps({**wanted, "dev": dev}, indent=2) + "\n", encoding="utf-8")
    unfinished.unlink()
    print(f"install: done in {time.monotonic() - started:.0f} s; try {venv / 'bin' / 'ziggurat'} doctor", flush=True)


def steps(versions: Any, flavour: str, dev: bool) -> Iterator[tuple[str, list[str]]]:
    """(title, arguments of ``pip install``) in order.

    The build tools come first, at locked versions, so that nothing is built in an isolated environment: that would
    fetch whatever setuptools is newest that day. torchrec comes last, without dependencies, for it declares the CUDA
    build of fbgemm; its own needs are listed in ``torchrec-needs.txt``.
    """
    index = os.environ.get("TORCH_INDEX", "")
    engine = versions.engine_requirements(flavour, bool(index))
    needs = ["-r", str(ROOT / "requirements" / "torchrec-needs.txt")]
    if dev:
        needs += ["-r", str(ROOT / "requirements" / "dev.txt")]
    yield "build tools", ["-c", str(LOCK), *BUILD_TOOLS]
    if index:
        yield f"torch from {index}", ["--no-deps", "--index-url", index, engine[0]]
    yield "libraries", ["--no-build-isolation", "-c", str(LOCK), *engine, *needs, "-e", str(ROOT)]
    yield "torchrec", ["--no-deps", f"torchrec=={versions.TORCHREC}"]


def load_versions() -> Any:
    """``ziggurat.core.versions`` by its path: the package is not installed yet."""
    spec = importlib.util.spec_from_file_location("versions", ROOT / "src" / "ziggurat" / "core" / "versions.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_python(minimum: tuple[int, int]) -> None:
    if sys.version_info[:2] < minimum:
        raise InstallError(
            f"this is Python {sys.version.split()[0]}, ziggurat needs {minimum[0]}.{minimum[1]} or newer",
            "install one, or name it: make install PYTHON=/path/to/python3.11",
        )
    missing = [name for name in ("venv", "ensurepip") if importlib.util.find_spec(name) is None]
    if missing:
        package = f"python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        raise InstallError(
            f"{sys.executable} lacks the module {' and '.join(missing)}",
            f"install it (Debian and Ubuntu: apt-get install {package}), or use another Python: make install PYTHON=…",
        )


def choose_flavour() -> str:
    """``cuda`` where nvidia-smi works, else ``cpu``; ZIGGURAT_FLAVOUR overrides."""
    chosen = os.environ.get("ZIGGURAT_FLAVOUR", "")
    if chosen:
        if chosen not in FLAVOURS:
            raise InstallError(f"ZIGGURAT_FLAVOUR is {chosen!r}", f"set it to {' or '.join(FLAVOURS)}, or unset it")
        return chosen
    program = shutil.which("nvidia-smi")
    if program is None:
        return "cpu"
    try:
        answer = subprocess.run([program, "-L"], capture_output=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "cuda" if answer.returncode == 0 and b"GPU" in answer.stdout else "cpu"


def fingerprint(venv: Path) -> str:
    """A hash of everything that decides what is installed, and of where: an environment cannot be moved."""
    files = [
        Path(__file__),
        ROOT / "pyproject.toml",
        ROOT / "src" / "ziggurat" / "_version.py",
        ROOT / "src" / "ziggurat" / "core" / "versions.py",
        *sorted((ROOT / "requirements").glob("*.txt")),
    ]
    digest = hashlib.sha256(repr((str(ROOT), str(venv), sys.version_info[:2])).encode())
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return digest.hexdigest()


def read_stamp(stamp: Path) -> dict[str, Any]:
    try:
        return json.loads(stamp.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def is_current(stamp: Path, wanted: Mapping[str, Any]) -> bool:
    """Whether the stamp says what is wanted; an environment with the development tools serves without them too."""
    found = read_stamp(stamp)
    same = all(found.get(key) == wanted[key] for key in ("fingerprint", "flavour"))
    return same and (found.get("dev", False) or not wanted["dev"]) and (stamp.parent / "bin" / "python").exists()


def is_usable(venv: Path) -> bool:
    """Whether the environment runs this very Python version and has pip."""
    python = venv / "bin" / "python"
    if not python.exists():
        return False
    code = "import pip, sys; print(*sys.version_info[:2], sys.prefix)"
    try:
        answer = subprocess.run([str(python), "-c", code], capture_output=True, text=True, timeout=120, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return answer.stdout.strip() == f"{sys.version_info[0]} {sys.version_info[1]} {venv}"


def create_environment(venv: Path, afresh: bool) -> None:
    if not afresh:
        return
    if venv.exists() and not (venv / "pyvenv.cfg").exists() and any(venv.iterdir()):
        raise InstallError(f"{venv} exists and is no virtual environment", "move it away, or name another: --venv DIR")
    answer = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)], capture_output=True, text=True, check=False
    )
    if answer.returncode != 0:
        output = (answer.stdout + answer.stderr).strip()
        raise InstallError(
            f"could not create {venv}: {output or 'no reason given'}",
            "check that the disk has space, the folder is writable and this Python's venv module is whole",
        )


def compile_bytecode(venv: Path) -> None:
    """Compiles what pip installed on all cores; pip itself uses one, and takes as long for it as for all the rest.

    The libraries' own tests, a fifth of the code, are left out. Files that do not compile, as those for other Python
    versions, are left to whoever imports them.
    """
    started = time.monotonic()
    libraries = [str(path) for path in venv.glob("lib/python*/site-packages")]
    command = [str(venv / "bin" / "python"), "-m", "compileall", "-q", "-j", "0", "-x", TESTS, *libraries]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    print(f"  bytecode: {time.monotonic() - started:.0f} s", flush=True)


def run_pip(venv: Path, title: str, arguments: Sequence[str]) -> None:
    """``pip install`` with its full output in ``install.log`` and one line a step on the screen."""
    log = venv / "install.log"
    command = [str(venv / "bin" / "python"), "-m", "pip", "install", "--no-compile"]
    command += ["--disable-pip-version-check", "--no-input"]
    started = time.monotonic()
    live = sys.stdout.isatty()
    with log.open("a", encoding="utf-8") as sink:
        sink.write(f"\n== {title}: pip install {' '.join(arguments)}\n")
        sink.flush()
        output: list[str] = []
        with subprocess.Popen(
            [*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as pip:
            assert pip.stdout is not None
            for line in pip.stdout:
                sink.write(line)
                output.append(line)
                if live and line.lstrip().startswith(("Collecting", "Downloading", "Installing", "Building")):
                    print(f"\r\033[K  {title}: {line.strip()[:90]}", end="", flush=True)
    clear = "\r\033[K" if live else ""
    if pip.returncode != 0:
        print(f"{clear}  {title}: failed", flush=True)
        raise explained(output, log)
    print(f"{clear}  {title}: {time.monotonic() - started:.0f} s", flush=True)


def explained(output: Sequence[str], log: Path) -> InstallError:
    """What pip's last words mean for the user."""
    text = "".join(output)
    errors = [line.strip() for line in output if line.startswith("ERROR")] or [line.strip() for line in output[-5:]]
    problem = "pip failed: " + " / ".join(errors[-4:])
    if any(sign in text for sign in OFFLINE_SIGNS):
        hint = (
            "check the network; behind a proxy set HTTPS_PROXY, behind a mirror PIP_INDEX_URL,"
            " or put the wheels into a folder and name it in PIP_FIND_LINKS"
        )
    elif "No space left" in text:
        hint = "free some space: the CPU flavour needs about 3 GB, CUDA about 10 GB"
    elif any(sign in text for sign in ("No matching distribution", "Could not find a version", "conflicting dep")):
        hint = (
            "the index lacks a locked version for this Python and platform, or does not answer: take Python 3.11"
            " (make install PYTHON=python3.11), or name an index for torch in TORCH_INDEX"
        )
    else:
        hint = "read the log below"
    return InstallError(problem, f"{hint}; full log: {log}")


if __name__ == "__main__":
    sys.exit(main())

"""The checks of `ziggurat doctor`. Nothing here imports torch: the engine is tried last, in a separate process."""

from __future__ import annotations

import importlib.util
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from ziggurat.core import engine, versions
from ziggurat.core.control_group import available_bytes, cpu_quotas

State = Literal["ok", "note", "fail"]

OLDEST_DRIVER = {12: 525, 13: 580}
"""CUDA major release that torch was built for -> the oldest NVIDIA driver that supports it."""

_LOOKUP_SCRIPT = """
import sys, torch, fbgemm_gpu, torchrec
from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
from fbgemm_gpu.split_table_batched_embeddings_ops_training import ComputeDevice, SplitTableBatchedEmbeddingBagsCodegen
from torchrec.sparse.jagged_tensor import KeyedJaggedTensor
cuda = torch.cuda.is_available()
device = torch.device("cuda" if cuda else "cpu")
place = (EmbeddingLocation.DEVICE, ComputeDevice.CUDA) if cuda else (EmbeddingLocation.HOST, ComputeDevice.CPU)
table = SplitTableBatchedEmbeddingBagsCodegen([(4, 8, *place)], device=device)
table.split_embedding_weights()[0].copy_(torch.arange(32.0).reshape(4, 8))
ids = KeyedJaggedTensor(keys=["f"], values=torch.tensor([3, 1, 2]), lengths=torch.tensor([1, 2])).to(device)
pooled = table(ids.values(), ids.offsets())
assert pooled.tolist() == [[24.0 + k for k in range(8)], [24.0 + 2 * k for k in range(8)]], pooled
print(f"one lookup on {torch.cuda.get_device_name() if cuda else 'the CPU'}, {torch.get_num_threads()} threads")
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the table; ``hint`` is a command or an instruction, or empty if nothing is to be done."""

    name: str
    state: State
    found: str
    hint: str = ""


def all_checks(folder: str | Path) -> Iterator[Check]:
    """Yields all checks, cheapest first; the engine is tried only if no earlier check failed."""
    failed = False
    installed = engine.installed_engine()
    software = (*python_check(), *engine_checks(installed), *library_checks(installed), *accelerator_checks(installed))
    for check in (*software, *machine_checks(Path(folder))):
        failed |= check.state == "fail" and check.name not in ("disk", "memory")
        yield check
    if failed:
        yield Check("lookup", "note", "not tried, fix the above first")
    else:
        yield lookup_check()


def python_check() -> Iterator[Check]:
    """Checks whether this Python is new enough."""
    found = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] < versions.PYTHON_MINIMUM:
        yield Check("Python", "fail", found, "install Python 3.11 or newer, then make install PYTHON=python3.11")
    else:
        yield Check("Python", "ok", f"{found}, {sys.executable}")


def engine_checks(found: engine.Installed) -> Iterator[Check]:
    """Yields one check for torch, torchrec and fbgemm, or one for each problem that prevents loading them."""
    problems = engine.engine_problems(found)
    for problem, hint in problems:
        yield Check("engine", "fail", problem, hint)
    if not problems:
        build = f"CUDA {found.torch_cuda}" if found.torch_cuda else "CPU"
        parts = f"torch {found.torch} ({build} build), torchrec {found.torchrec}"
        yield Check("engine", "ok", f"{parts}, {versions.FBGEMM_DISTRIBUTION[found.flavour]} {versions.FBGEMM}")


def library_checks(found: engine.Installed) -> Iterator[Check]:
    """Checks for libraries that are missing or have a version that ziggurat's metadata excludes.

    torchrec's requirements are skipped if no part of the engine is installed, as installing the engine installs them.
    """
    ranges = _declared_ranges()
    any_problem = False
    needs = {requirement.partition("=")[0] for requirement in versions.TORCHREC_NEEDS} if found.is_empty else set()
    wanted = [name for name in versions.LIBRARIES if name not in needs]
    for distribution in wanted:
        installed = engine.installed_version(distribution)
        specifier = ranges.get(_normalised(distribution), "")
        if installed is None:
            problem = f"{distribution} is not installed"
        elif not _satisfies(installed, specifier):
            problem = f"{distribution} is {installed}, but {specifier} is needed"
        else:
            continue
        any_problem = True
        yield Check("library", "fail", problem, f"{engine.pip_install()} '{distribution}{specifier}'")
    if not any_problem:
        yield Check("libraries", "ok", f"all {len(wanted)} present")


def _declared_ranges() -> dict[str, str]:
    """Returns distribution -> version specifier from ziggurat's metadata; empty for a source tree without metadata."""
    try:
        declared = metadata.requires("ziggurat") or []
    except metadata.PackageNotFoundError:
        return {}
    ranges: dict[str, str] = {}
    for requirement in declared:
        text = requirement.partition(";")[0].strip()
        name = text.rstrip("<>=!~,.0123456789 ")
        ranges[_normalised(name)] = text.removeprefix(name).strip()
    return ranges


def _normalised(distribution: str) -> str:
    """Normalises a distribution's name (PEP 503): ``ruamel.yaml`` -> ``ruamel-yaml``."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _satisfies(version: str, specifier: str) -> bool:
    if importlib.util.find_spec("packaging") is None:
        return True
    from packaging.specifiers import SpecifierSet

    return SpecifierSet(specifier).contains(version, prereleases=True)


def accelerator_checks(found: engine.Installed) -> Iterator[Check]:
    """Checks the NVIDIA driver against the builds of torch and fbgemm."""
    driver = engine.nvidia_driver()
    if driver is None:
        if found.flavour == "cuda":
            yield Check("accelerator", "fail", "the CUDA flavour is installed, but nvidia-smi finds no NVIDIA driver",
                        f"install the driver, or take the CPU flavour: {reinstall_command('cpu')}")  # fmt: skip
        else:
            yield Check("accelerator", "note", "none: training runs on the CPU")
        return
    version, devices = driver
    names = f"{len(devices)} × {devices[0]}, driver {version}"
    oldest = OLDEST_DRIVER.get(int((found.torch_cuda or "0").partition(".")[0]), 0)
    if found.is_empty:
        yield Check("accelerator", "ok", names)
    elif found.flavour == "cpu":
        yield Check("accelerator", "note", f"{names}, but the CPU flavour is installed and leaves it idle",
                    reinstall_command("cuda"))  # fmt: skip
    elif version.partition(".")[0].isdigit() and int(version.partition(".")[0]) < oldest:
        yield Check("accelerator", "fail", f"{names}, too old for CUDA {found.torch_cuda}",
                    f"update the NVIDIA driver to {oldest} or newer")  # fmt: skip
    else:
        yield Check("accelerator", "ok", names)


def reinstall_command(flavour: engine.Flavour) -> str:
    """Returns the command that changes this installation to a flavour: by make in a checkout, else by pip."""
    if _in_checkout():
        return f"ZIGGURAT_FLAVOUR={flavour} make install"
    return " && ".join([engine.uninstall_command(), *engine.install_commands(flavour)])


def _in_checkout() -> bool:
    return (Path(__file__).parents[4] / "tools" / "install.py").is_file()


def machine_checks(folder: Path) -> Iterator[Check]:
    """Checks the disk for runs, the memory and the number of torch's threads."""
    free_gb = shutil.disk_usage(folder).free / 1e9
    state: State = "fail" if free_gb < 0.5 else "note" if free_gb < 5 else "ok"
    yield Check("disk", state, f"{free_gb:,.1f} GB free in {folder.resolve()}",
                "free some space: a run keeps the prepared data and checkpoints" if state != "ok" else "")  # fmt: skip
    memory_gb = available_bytes() / 1e9
    state = "fail" if memory_gb < 1 else "note" if memory_gb < 4 else "ok"
    yield Check("memory", state, f"{memory_gb:,.1f} GB for this process",
                "close other programs, or raise the container's limit" if state != "ok" else "")  # fmt: skip
    yield bf16_check()
    yield compiler_check()
    yield threads_check(len(os.sched_getaffinity(0)), cpu_quota(), os.environ.get("OMP_NUM_THREADS", ""))


def bf16_check() -> Check:
    """Tells whether this machine's processor, or its GPU, multiplies bfloat16 in hardware."""
    try:
        import torch

        from ziggurat.training.process_group import pick_device
        from ziggurat.training.run_folder.precision import multiplies_bf16

        device = pick_device("auto")
        in_hardware = multiplies_bf16(device)
    except Exception as error:  # noqa: BLE001 (an engine that cannot be imported has a check of its own)
        return Check("bf16", "note", f"not known: {type(error).__name__}")
    name = "the processor" if device.type == "cpu" else torch.cuda.get_device_name(device)
    if in_hardware:
        return Check("bf16", "ok", f"{name} multiplies it in hardware: `precision: auto` takes it")
    return Check("bf16", "note", f"{name} does not multiply it in hardware: `precision: auto` takes fp32")


def compiler_check() -> Check:
    """Tells whether there is a C++ compiler, which torch.compile needs."""
    found = engine.cpp_compiler()
    if found is None:
        return Check("C++ compiler", "note", "none: `training.compile: true` would run uncompiled, with a warning")
    return Check("C++ compiler", "ok", f"{found}: `training.compile: true` can use it")


def threads_check(cores: int, quota: int | None, wanted: str) -> Check:
    """Checks whether torch starts more threads than there are usable cores; ``wanted`` is OMP_NUM_THREADS.

    Fewer threads than cores are accepted: the user may want to share the machine.
    """
    usable = min(cores, quota) if quota else cores
    chosen = wanted.isdigit() and int(wanted) > 0
    threads = int(wanted) if chosen else cores
    if threads > usable:
        hint = f"export OMP_NUM_THREADS={usable}"
        return Check("threads", "note", f"torch would start {threads} on {usable} usable cores", hint)
    return Check("threads", "ok", f"{threads} of {usable} cores, by OMP_NUM_THREADS" if chosen else f"{threads}")


def cpu_quota(root: Path = Path("/")) -> int | None:
    """Returns the control groups' CPU limit, rounded up; None if there is none."""
    quota = min(cpu_quotas(root), default=None)
    return None if quota is None else max(1, math.ceil(quota))


def lookup_check(timeout_s: float = 300) -> Check:
    """Imports torch, torchrec and fbgemm and looks up rows of a table, in another process that may crash."""
    started = time.monotonic()
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    reinstall = "make clean install" if _in_checkout() else reinstall_command(engine.installed_engine().flavour)
    hint = f"{reinstall}; if the problem stays, open an issue with this message"
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _LOOKUP_SCRIPT],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Check("lookup", "fail", f"no answer within {timeout_s:.0f} s", hint)
    if answer.returncode == 0:
        return Check("lookup", "ok", f"{answer.stdout.strip()}, {time.monotonic() - started:.1f} s with imports")
    last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
    if answer.returncode < 0:
        last = f"crashed with {signal.Signals(-answer.returncode).name}: {last}"
    return Check("lookup", "fail", last, hint)

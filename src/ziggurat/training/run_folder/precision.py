"""Chooses the precision of the dense part and whether to compile it, where the config says ``auto``."""

from __future__ import annotations

import contextlib
from pathlib import Path

import torch

from ziggurat.core.engine import cpp_compiler
from ziggurat.core.errors import ZigguratError
from ziggurat.training.config import Precision
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.run_folder.run_files import CONFIG_FILE


def with_choices(experiment: Experiment, precision: Precision, compiled: bool) -> Experiment:
    """Returns the experiment with this precision of the dense part, compiled or not."""
    training = experiment.training.model_copy(update={"precision": precision, "compile": compiled})
    return experiment.model_copy(update={"training": training})


def choices(experiment: Experiment, folder: Path, device: torch.device) -> tuple[Precision, bool]:
    """Returns the precision to train with, and whether to compile: what the config says; for ``auto``, what a run began
    with, if there is one already.

    A new run takes bf16 where the device multiplies it in hardware. It is compiled on a GPU if there is a C++ compiler,
    and not on a CPU. There, compiled steps took .8 to .99 of the time, but those of DCN-V2 with dropout 1.5 times, and
    compiling up to 80 seconds (docs/lab-notebook.md, "torch.compile on a CPU"). To measure the first steps instead
    would make weights depend on the machine's load. The run's config records what was taken, so that it is evaluated
    and resumed in the same way on every machine.

    Args:
        experiment: the experiment.
        folder: the run folder, which need not exist.
        device: the device to train on.
    """
    precision, compiled = experiment.training.precision, experiment.training.compile
    if "auto" in {precision, compiled} and (folder / CONFIG_FILE).is_file():
        with contextlib.suppress(ZigguratError):  # is reported where the run is resumed
            recorded = open_run(folder).experiment.training
            precision = recorded.precision if precision == "auto" else precision
            compiled = recorded.compile if compiled == "auto" else compiled
    if precision == "auto":
        precision = "bf16" if multiplies_bf16(device) else "fp32"
    if compiled == "auto":
        compiled = device.type == "cuda" and cpp_compiler() is not None
    return precision, compiled


def multiplies_bf16(device: torch.device) -> bool:
    """Returns whether the device multiplies matrices of bfloat16 in hardware: AMX or AVX-512-BF16 of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    supported = (getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return any(bool(ask()) for ask in supported if ask is not None)

"""Chooses what the config leaves open: the precision of the dense part, whether to compile it, where it begins."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path

import torch

from ziggurat.core.engine import cpp_compiler
from ziggurat.core.errors import ZigguratError
from ziggurat.training.config import Precision
from ziggurat.training.experiment import Experiment
from ziggurat.training.run_folder.run import open_run
from ziggurat.training.run_folder.run_files import CONFIG_FILE


@dataclass(frozen=True, slots=True)
class Choices:
    """What a run trains with.

    Attributes:
        precision: of the dense part.
        compiled: whether the dense part is compiled.
        start_at_base_rate: whether binary labels are first predicted by their base rates.
    """

    precision: Precision
    compiled: bool
    start_at_base_rate: bool


def with_choices(experiment: Experiment, chosen: Choices) -> Experiment:
    """Returns the experiment with these choices in its config."""
    changes = {
        "precision": chosen.precision,
        "compile": chosen.compiled,
        "start_at_base_rate": chosen.start_at_base_rate,
    }
    return experiment.model_copy(update={"training": experiment.training.model_copy(update=changes)})


def choices(experiment: Experiment, folder: Path, device: torch.device) -> Choices:
    """Returns what to train with: what the config says; what it leaves open as a run began, if there is one already.

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
    starts = experiment.training.start_at_base_rate
    is_open = "auto" in {precision, compiled} or starts is None
    if is_open and (folder / CONFIG_FILE).is_file():
        with contextlib.suppress(ZigguratError):  # is reported where the run is resumed
            recorded = open_run(folder).experiment.training
            precision = recorded.precision if precision == "auto" else precision
            compiled = recorded.compile if compiled == "auto" else compiled
            starts = recorded.start_at_base_rate if starts is None else starts
    if precision == "auto":
        precision = "bf16" if multiplies_bf16(device) else "fp32"
    if compiled == "auto":
        compiled = device.type == "cuda" and cpp_compiler() is not None
    return Choices(precision, compiled, True if starts is None else starts)


def multiplies_bf16(device: torch.device) -> bool:
    """Returns whether the device multiplies matrices of bfloat16 in hardware: AMX or AVX-512-BF16 of a CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device)[0] >= 8
    supported = (getattr(torch.cpu, name, None) for name in ("_is_amx_tile_supported", "_is_avx512_bf16_supported"))
    return any(bool(ask()) for ask in supported if ask is not None)

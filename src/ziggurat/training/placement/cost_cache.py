"""Where costs that were measured on this machine lie, and whose planners use them."""

from __future__ import annotations

import os
import platform
import re
from pathlib import Path

import torch

from ziggurat.core.topology import DeviceKind
from ziggurat.planning.autoshard.learned import NETWORK
from ziggurat.planning.config import PlanningConfig


def with_measured(config: PlanningConfig, kind: DeviceKind) -> PlanningConfig:
    """The config, whose planner has the costs of this machine where they were measured and the plan is for it."""
    planner, folder = config.planner, measured_folder(config, kind)
    if planner.learned_folder or folder is None:
        return config
    return config.model_copy(update={"planner": planner.with_learned(folder)})


def measured_folder(config: PlanningConfig, kind: DeviceKind) -> Path | None:
    """Where this machine's measurements lie, if the plan is for it and there are any."""
    if config.topology.device != "local":  # it need not have devices of that kind
        return None
    folder = kernel_folder(torch.device(kind))
    return folder if (folder / NETWORK).is_file() else None


def kernel_folder(device: torch.device) -> Path:
    """Where measurements of this machine lie: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "ziggurat" / "kernels" / re.sub(r"[^a-z0-9]+", "-", machine_name(device).lower()).strip("-")


def machine_name(device: torch.device) -> str:
    """Of what costs are measured on: the processor's or the accelerator's."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{_processor()}, one thread"


def _processor() -> str:
    """With family and model where they are told: virtual machines call processors of many generations by one name."""
    told = dict(reversed([[each.strip() for each in line.split(":", 1)] for line in _cpuinfo() if ":" in line]))
    name = told.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {told['cpu family']}, model {told['model']})" if "cpu family" in told else name


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

"""Locates the costs that were measured on this machine, and gives them to the planners that use them."""

from __future__ import annotations

import platform
import re
from pathlib import Path

import torch

from ziggurat.core.files import user_cache
from ziggurat.core.topology import DeviceKind
from ziggurat.planning.autoshard.learned import NETWORK
from ziggurat.planning.config import PlanningConfig


def with_measured_costs(config: PlanningConfig, kind: DeviceKind) -> PlanningConfig:
    """Returns the config with this machine's costs, if they were measured and the plan is for this machine."""
    planner, folder = config.planner, measured_cost_folder(config, kind)
    if planner.learned_folder or folder is None:
        return config
    return config.model_copy(update={"planner": planner.with_learned(folder)})


def measured_cost_folder(config: PlanningConfig, kind: DeviceKind) -> Path | None:
    """Returns the folder of this machine's measured costs; None if there are none, or the plan is for other devices."""
    if config.topology.device != "local":  # this machine may have no devices of that kind
        return None
    folder = cost_cache_folder(torch.device(kind))
    return folder if (folder / NETWORK).is_file() else None


def cost_cache_folder(device: torch.device) -> Path:
    """Returns the folder for costs measured on this machine, in ``XDG_CACHE_HOME`` or ``~/.cache``."""
    return user_cache("kernels") / re.sub(r"[^a-z0-9]+", "-", machine_name(device).lower()).strip("-")


def machine_name(device: torch.device) -> str:
    """Returns the name of the processor or accelerator that costs are measured on."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{_processor()}, one thread"


def _processor() -> str:
    """Returns the processor's name, with family and model if the kernel lists them.

    Virtual machines use the same name for processors of several generations.
    """
    fields = dict(reversed([[part.strip() for part in line.split(":", 1)] for line in _cpuinfo() if ":" in line]))
    name = fields.get("model name") or platform.processor() or platform.machine()
    return f"{name} (family {fields['cpu family']}, model {fields['model']})" if "cpu family" in fields else name


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

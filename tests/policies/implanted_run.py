"""A finished run of CartPole whose snapshots are policies with known weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from ziggurat.policies import run_folder
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.training import train

SURE, ALIKE, UNSURE, BAD = 20.0, 19.0, 1.0, -20.0
"""How surely a policy pushes the cart to where the pole leans; a negative number pushes the other way.

The first three balance the pole. The first two are alike, the third is apart from both, and the last is farthest.
"""


def implanted(folder: Path, controllers: Sequence[float], **sections: Any) -> PoliciesConfig:
    """Trains a run for a moment, puts the controllers in the places of its snapshots, and returns its config."""
    cycles = len(controllers)
    values: dict[str, Any] = {
        "task": {"env": "CartPole-v1", "max_steps": 30},
        "algorithm": {"name": "a2c", "hidden": (8,), "n_steps": 8},
        "training": {"steps": 16 * cycles, "cycles": cycles, "environments": 2},
        "selection": {"members": 2, "episodes": 4, "states": 40},
        "ensemble": {},
        "evaluation": {"episodes": 3},
    }
    config = PoliciesConfig.model_validate({key: {**values[key], **sections.get(key, {})} for key in values})
    train(config, folder)
    for cycle, sure in enumerate(controllers, 1):
        arrays = load_file(run_folder.snapshot_path(folder, cycle))
        for name in arrays:
            if name.startswith(("policy/mlp_extractor.policy_net", "policy/action_net")):
                arrays[name] = np.zeros_like(arrays[name])
        arrays["policy/mlp_extractor.policy_net.0.weight"][0] = [0.0, 0.0, 1.0, 1.0]
        arrays["policy/action_net.weight"][:, 0] = [-sure, sure]
        run_folder.write_snapshot(folder, cycle, 16 * cycle, "a2c", arrays)
    return config

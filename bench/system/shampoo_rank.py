"""A rank of ``shampoo_state``: ``python -m bench.system.ranks N bench.system.shampoo_rank FOLDER``.

``FOLDER/case`` names the model and the setting. Each rank takes a step and writes the size of its states to the folder.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from bench.micro.shampoo_cases import CASES, SETTINGS
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.training.process_group import process_group


def state_bytes(parameters: dict[str, nn.Parameter], config: ShampooConfig) -> int:
    """Returns the bytes of the optimizer states on this rank after a step, without the count of steps."""
    optimizer = config.build(parameters)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    return sum(each.to_local().nbytes if isinstance(each, DTensor) else each.nbytes for each in states)


def main(folder: Path) -> None:
    name, setting = (folder / "case").read_text().split()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with process_group(torch.device("cpu")) as world:
        case = CASES[name]
        parameters = dict(case.config.build(case.dims).named_parameters())
        found = {
            "state": state_bytes(parameters, ShampooConfig(**SETTINGS[setting][0], precondition_frequency=10**9)),
            "parameters": sum(each.nbytes for each in parameters.values()),
        }
        (folder / f"{world.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""A rank with Shampoo's state: ``python -m bench.system.ranks N bench.system.shampoo_rank FOLDER``.

``FOLDER/case`` says which model; each rank takes a step and leaves in the folder what it holds, in bytes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from bench.micro.shampoo_cases import CASES, WAYS
from ziggurat.optim.shampoo.config import ShampooConfig
from ziggurat.training.process_group import process_group


def held(parameters: dict[str, nn.Parameter], config: ShampooConfig) -> int:
    """Bytes of states on this rank behind a step; the count of steps, that every rank has, left out."""
    optimizer = config.build(parameters)
    for parameter in parameters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    states = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    return sum(each.to_local().nbytes if isinstance(each, DTensor) else each.nbytes for each in states)


def main(folder: Path) -> None:
    name, way = (folder / "case").read_text().split()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with process_group(torch.device("cpu")) as world:
        case = CASES[name]
        parameters = dict(case.config.build(case.dims).named_parameters())
        found = {
            "state": held(parameters, ShampooConfig(**WAYS[way][0], precondition_frequency=10**9)),
            "parameters": sum(each.nbytes for each in parameters.values()),
        }
        (folder / f"{world.rank}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Trains cases on one rank of the lab: `python -m bench.lab.worker SPEC OUT`.

The first rank writes the measurements of all ranks for each round to OUT. SPEC is a JSON file:
``{"cases": [...], "warmups": 1, "rounds": 5, "steps": 10, "inputs": false}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch.distributed as dist

from bench.lab.direct import Direct
from bench.lab.workload import CPU, Case, Trained
from ziggurat.training.process_group import process_group


def main(arguments: Sequence[str]) -> None:
    spec, out = json.loads(Path(arguments[0]).read_text(encoding="utf-8")), Path(arguments[1])
    with process_group(CPU):
        cases = [Case.from_json(each) for each in spec["cases"]]
        trained = {case.name: Direct(case) if case.torchrec else Trained(case) for case in cases}
        samples: dict[str, list[dict[str, Any]]] = {name: [] for name in trained}
        names = list(trained)
        for turn in range(spec["warmups"] + spec["rounds"]):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                found = trained[name].steps(spec["steps"])
                values = {"seconds": found.seconds, "inter": found.inter, "intra": found.intra, "loss": found.loss}
                case = trained[name]
                if spec["inputs"] and isinstance(case, Trained):
                    values["input_seconds"] = case.input_seconds(spec["steps"])
                if turn >= spec["warmups"]:
                    samples[name].append(values)
                if dist.get_rank() == 0:
                    print(f"round {turn + 1}: {name} {1000 * found.seconds:,.0f} ms a step", flush=True)
        if dist.get_rank() == 0:
            out.write_text(json.dumps(samples), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

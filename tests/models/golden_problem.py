"""A fixed small problem, trained for 100 steps; a refactor must not change its losses.

    .venv/bin/python tests/models/golden_problem.py            # stores the losses of new models
    .venv/bin/python tests/models/golden_problem.py NAME ...   # after an intended change, stores those of these anew

Losses of other models stay as they are, and those of models that no longer exist are dropped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from model_cases import CONFIGS, dims_for
from torch import nn
from torch.nn import functional as F

from ziggurat.models import ModelConfig

GOLDEN = Path(__file__).with_name("golden_losses.json")
STEPS = 100
ROWS, IDS = 1024, 20


def losses(config: ModelConfig, steps: int = STEPS) -> list[float]:
    """Returns the loss before each of so many Adam steps on 1,024 rows with 3 numbers, 4 ids of 20 and a noisy label.

    Weights are drawn in single precision; training is in double precision. In single precision Wukong and DHEN drift:
    two orders of summation, which differ by 1e-7 at first, give losses that differ by percents after about 60 steps.
    """
    generator = torch.Generator().manual_seed(42)
    dims = dims_for(config)
    dense_BF = torch.randn(ROWS, dims.dense, generator=generator).double()
    ids_BF = torch.randint(0, IDS, (ROWS, dims.features), generator=generator)
    score_B = dense_BF[:, 0] + (ids_BF[:, 0] % 3 - 1) * (ids_BF[:, 1] % 3 - 1)
    labels_B1 = (score_B + torch.randn(ROWS, generator=generator) > 0).double()[:, None]

    torch.manual_seed(0)
    tables = nn.ModuleList(nn.Embedding(IDS, dims.dim) for _ in range(dims.features))
    for table in tables:
        nn.init.normal_(table.weight, std=0.1)
    model = config.build(dims).double()
    tables.double()
    optimizer = torch.optim.Adam([*tables.parameters(), *model.parameters()], lr=0.002)
    history: list[float] = []
    for _ in range(steps):
        emb_BFD = torch.stack([table(ids_BF[:, f]) for f, table in enumerate(tables)], dim=1)
        loss = F.binary_cross_entropy_with_logits(model(dense_BF, emb_BFD), labels_B1)
        history.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return history


def store(anew: Sequence[str], path: Path = GOLDEN) -> list[str]:
    """Stores the losses of models that have none, and those of ``anew`` again; returns the names of both.

    Raises:
        SystemExit: a name is that of no case in ``model_cases.py``.
    """
    unknown = [name for name in anew if name not in CONFIGS]
    if unknown:
        sys.exit(f"{unknown[0]}: no case of tests/models/model_cases.py; there are: {', '.join(CONFIGS)}")
    stored: dict[str, list[float]] = json.loads(path.read_text()) if path.exists() else {}
    made = [name for name in CONFIGS if name in anew or name not in stored]
    found = {name: losses(config) if name in made else stored[name] for name, config in CONFIGS.items()}
    path.write_text(json.dumps(found, indent=1) + "\n")
    return made


if __name__ == "__main__":
    print(f"{GOLDEN}: stored {', '.join(store(sys.argv[1:])) or 'nothing, as all models have losses'}")

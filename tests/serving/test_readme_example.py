"""The request that README shows is one that the model of ``make demo`` can answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ziggurat.features.raw_schema import columns_for
from ziggurat.training.experiment import load_experiment

ROOT = Path(__file__).parents[2]


def test_the_example_names_the_columns_of_the_demo() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    command = text[text.index("curl localhost:8080/v1/rank") :]
    body = command[command.index("-d '") + 4 : command.index("}]}'") + 3].replace("'\"'\"'", "'")
    request: dict[str, Any] = json.loads(body)
    experiment = load_experiment(ROOT / "examples" / "movielens.yaml")
    wanted = {column.source for column in columns_for(experiment.features, None).columns}
    assert len(request["candidates"]) == 2
    for candidate in request["candidates"]:
        assert {*request["context"], *candidate} == wanted
        assert not set(request["context"]) & set(candidate)
    assert "\n    .venv/bin/ziggurat serve exports/movielens\n" in text

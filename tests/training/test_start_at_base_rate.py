"""Where training begins: at the base rate, with every model and head, unless a run began elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import MakeExperiment
from ziggurat.cli.drafts.model_names import model_names
from ziggurat.core.untrusted import parse_yaml
from ziggurat.training import api
from ziggurat.training.run_folder.run_files import DAMAGED, RunFiles

RARE = [{"name": "click", "column": "when", "at_least": 3600}]
"""The last of 3,000 rows: a rate far from one half."""
HEADS: dict[str, dict[str, Any]] = {
    "mmoe": {"name": "mmoe", "experts": 2, "expert": {"hidden": [8]}, "tower": {"hidden": [4]}},
    "ple": {"name": "ple", "shared_experts": 1, "task_experts": 1, "expert": {"hidden": [8]}, "tower": {"hidden": [4]}},
}
MODELS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in model_names()},
    **{f"{name} {head}": {"name": name, "head": HEADS[head]} for name in ("dnn", "dhen", "wukong") for head in HEADS},
}
STILL: dict[str, Any] = {
    "training__max_steps": 1,
    "optimizer": {"name": "adam", "lr": 1e-12},
    "embeddings__optimizer": {"name": "sgd", "lr": 1e-12},
}


@pytest.mark.parametrize("model", MODELS)
def test_the_normalised_entropy_of_every_model_is_one_before_the_first_step(
    make_experiment: MakeExperiment, model: str
) -> None:
    experiment = make_experiment(model=MODELS[model], data__labels=RARE, **STILL)
    assert experiment.training.start_at_base_rate is None
    figures = api.evaluate(api.train(experiment).run, "train").compute()
    assert figures["base_rate"] < 0.35
    assert figures["ne"] == pytest.approx(1, abs=0.05)
    assert figures["calibration"] == pytest.approx(1, abs=0.4)


def test_the_base_rate_is_that_of_the_weighted_rows(make_experiment: MakeExperiment) -> None:
    """Positive rows, and those with much spent, weigh nine times as much."""
    lines = Path("log.csv").read_text().splitlines()
    heavy = [number % 5 == 0 for number in range(1, len(lines))]
    added = [f"{line},{int(each)},{10 + 90 * each},{1 + 8 * each}" for line, each in zip(lines[1:], heavy, strict=True)]
    Path("log.csv").write_text("\n".join([f"{lines[0]},bought,spent,counts", *added]) + "\n")
    labels = [{"name": "bought"}, {"name": "spent", "kind": "regression"}]
    experiment = make_experiment(data__labels=labels, data__weight="counts", **STILL)
    figures = api.evaluate(api.train(experiment).run, "train").compute()
    share = 9 / 13  # of the weight
    assert figures["bought/base_rate"] == pytest.approx(share, abs=0.02)
    assert figures["spent/mean_label"] == pytest.approx(10 + 90 * share, rel=0.02)
    assert figures["bought/calibration"] == pytest.approx(1, abs=0.1)
    assert figures["spent/calibration"] == pytest.approx(1, abs=0.1)
    assert figures["bought/ne"] == pytest.approx(1, abs=0.05)
    assert figures["spent/relative_loss"] == pytest.approx(1, abs=0.1)


def test_what_was_taken_is_recorded_and_one_half_can_be_asked_for(make_experiment: MakeExperiment) -> None:
    begun = api.train(make_experiment(data__labels=RARE, **STILL), "begun").run
    assert api.load_run(begun.folder).experiment.training.start_at_base_rate is True
    half = api.train(make_experiment(data__labels=RARE, training__start_at_base_rate=False, **STILL), "half").run
    assert api.evaluate(half, "train").compute()["calibration"] > 1.5


def test_a_run_that_an_earlier_version_began_at_one_half_goes_on_as_it_began(make_experiment: MakeExperiment) -> None:
    changes: dict[str, Any] = {"data__labels": RARE, "training__epochs": 1, "training__save_every": 2}
    expected = api.train(make_experiment(training__start_at_base_rate=False, **changes), "expected")
    api.train(make_experiment(training__start_at_base_rate=False, **changes), "earlier", stop_after=4)
    files = RunFiles.open(Path("earlier"))
    text = files.read_config().decode()
    assert text.count("  start_at_base_rate: false\n") == 1
    files.write_config(text.replace("  start_at_base_rate: false\n", ""))  # as a version without the key wrote it
    assert "start_at_base_rate" not in str(parse_yaml(files.read_config(), "config.yaml", DAMAGED))
    resumed = api.train(make_experiment(**changes), "earlier")
    assert resumed.results is not None
    assert expected.results is not None
    assert resumed.results["figures"] == expected.results["figures"]

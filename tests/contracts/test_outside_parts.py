"""Parts from outside are checked with the config: each fault names the part, what it did, and what is allowed."""

from __future__ import annotations

import json
import re
import traceback
from collections import defaultdict
from pathlib import Path
from typing import Any

import faulty_parts
import pytest
import torch

from tests.training.conftest import config_values, write_log
from ziggurat.cli.main import main
from ziggurat.contracts.planners import small_problem
from ziggurat.core.config import parse_config, set_by_path
from ziggurat.core.errors import ConfigError
from ziggurat.core.outside.failures import explained_failure
from ziggurat.features.assemble import encoded_schema
from ziggurat.interactions.counted_flops import FlopsUnknown
from ziggurat.models.model import ModelDims
from ziggurat.objectives.outputs import Outputs
from ziggurat.objectives.task import Task
from ziggurat.planning.config import PlanningConfig
from ziggurat.planning.planner import plan_tables
from ziggurat.training.experiment import Experiment
from ziggurat.training.recommender import DensePart
from ziggurat.training.scaling.model_sizes import grown_experiments, size_of, sized_experiments
from ziggurat.training.train import train

FILE = re.escape(str(Path(faulty_parts.__file__)))


def part(name: str, **settings: Any) -> dict[str, Any]:
    return {"import": f"faulty_parts:{name}", **settings}


def dhen(**settings: Any) -> dict[str, Any]:
    return {"name": "dhen", "layer": {"blocks": [part("Fields", **settings)]}}


def experiment(path: str, section: dict[str, Any]) -> Experiment:
    values = config_values(Path())
    set_by_path(values, path, section)
    return parse_config(Experiment, values)


MODEL = r"model: faulty_parts:LogitsOf: logits returned {}, expected \(rows, tasks\) = \(2, 1\)"
BLOCK = r"model: faulty_parts:Fields: forward returned {}, expected \(rows, out_features, dims\) = \(2, {}, 8\)"
POOLING = "features.history.pooling"

FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "a logit too many": ("model", part("LogitsOf", what="one more"), MODEL.format(r"\(2, 2\)")),
    "flat logits": ("model", part("LogitsOf", what="flat"), MODEL.format(r"\(2,\)")),
    "logits of one row": ("model", part("LogitsOf", what="one row"), MODEL.format(r"\(1, 1\)")),
    "no logits": ("model", part("LogitsOf", what="none"), MODEL.format("None") + r"\n  hint: return one tensor"),
    "a dict": ("model", part("LogitsOf", what="dict"), MODEL.format("a dict")),
    "counts": ("model", part("LogitsOf", what="counts"), r"logits returned torch.int64, expected torch.float32"),
    "no gradient": ("model", part("LogitsOf", what="detached"), r"logits returned numbers without a gradient"),
    "numpy": ("model", part("ToNumpy"), r"ToNumpy: logits returned numbers without a gradient"),
    "nan": ("model", part("LogitsOf", what="nan"), r"logits returned infinity or nan for finite inputs"),
    "an exception": (
        "model",
        part("Raises"),
        rf"Raises: logits raised RuntimeError: mat1 and mat2 .*\n  {FILE}, line \d+, in logits: return self.deep\(.*\n"
        r"  hint: it was called with dense_BF \(2, 1\), emb_BFD \(2, 4, 8\)",
    ),
    "nothing built": (
        "model",
        part("Builds", what="none"),
        r"model: faulty_parts:Builds: build returned None, expected a ziggurat.extension.Model\n  hint: return",
    ),
    "another module built": (
        "model",
        part("Builds", what="module"),
        r"build returned a Linear, expected a ziggurat",
    ),
    "a frozen config": (
        "model",
        part("Builds", what="frozen"),
        rf"build raised ValidationError: hidden: Instance is frozen\n  {FILE}, line \d+, in build: self.hidden = 4",
    ),
    "an exception in build": (
        "model",
        part("Builds", what="raises"),
        rf"build raised AttributeError: 'ModelDims' .*\n  {FILE}, line \d+, in build: return dims.fields.*\n  hint: ",
    ),
    "other arguments": ("model", part("NoArguments"), rf"build raised TypeError: .*\n  {FILE}, line \d+: defined here"),
    "out_features": ("model", dhen(what="other out_features"), BLOCK.format(r"\(2, 5, 8\)", 2)),
    "no out_features": (
        "model",
        dhen(what="no out_features"),
        r"model.layer.blocks.0: faulty_parts:Fields: build returned a block with no out_features, expected a whole",
    ),
    "wide vectors": ("model", dhen(what="wide"), BLOCK.format(r"\(2, 5, 16\)", 5)),
    "flat fields": ("model", dhen(what="flat"), BLOCK.format(r"\(2, 40\)", 5)),
    "another dtype": ("model", dhen(what="double"), r"Fields: forward returned torch.float64, expected torch.float32"),
    "an exception in a block": (
        "model",
        dhen(what="raises"),
        rf"Fields: forward raised IndexError: .*(\n  {FILE}.*)+\n  hint: it was called with emb_BFD \(2, 5, 8\)",
    ),
    "a head too wide": (
        "model",
        {"name": "dnn", "head": part("Head", more=1)},
        r"model: faulty_parts:Head: forward returned \(2, 2\), expected \(rows, tasks\) = \(2, 1\)",
    ),
    "a wide sequence": (
        POOLING,
        part("Mean", what="wide"),
        r"features.history.pooling: faulty_parts:Mean: forward returned \(\d, 16\), expected \(rows, dims\) = ",
    ),
    "an empty sequence": (
        POOLING,
        part("Mean", what="bias"),
        r"Mean: forward returned numbers other than zero",
    ),
    "absent positions": (
        POOLING,
        part("Mean", what="unmasked"),
        r"Mean: what forward returned depends on vectors",
    ),
    "0 / 0": (POOLING, part("Mean", what="nan"), r"Mean: forward returned infinity or nan for finite inputs"),
    "no optimizer": (
        "optimizer",
        part("Descent", what="none"),
        r"optimizer: .*: make returned None, expected a torch",
    ),
    "an optimizer of half": ("optimizer", part("Descent", what="half"), r"optimizer that make returned lacks bias"),
    "no rate": ("optimizer", part("Descent", what="rate"), r"Descent: group 0 of the optimizer has no 'lr'"),
    "an exploding step": (
        "optimizer",
        part("Descent", what="nan"),
        r"Descent: step 1 made weight, of shape \(4, 3\)",
    ),
    "an exception in a step": (
        "optimizer",
        part("Descent", what="raises"),
        rf"Descent: step raised RuntimeError: .*\n  {FILE}, line \d+, in step: parameter.sub_",
    ),
    "no plan": (
        "planning.planner",
        part("FirstDevice", what="none"),
        r"planning.planner: .*: plan returned None",
    ),
    "a table less": (
        "planning.planner",
        part("FirstDevice", what="a table less"),
        r"FirstDevice: plan returned an impossible plan: placements.users: the plan does not place this table",
    ),
    "an exception in a plan": (
        "planning.planner",
        part("FirstDevice", what="raises"),
        rf"plan raised AttributeError: 'Problem' .* 'world_size'\n  {FILE}, line \d+, in plan: return problem.w",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_when_the_config_is_checked(fault: str) -> None:
    path, section, message = FAULTS[fault]
    with pytest.raises(ConfigError, match=message) as raised:
        experiment(path, section).check()
    assert raised.value.hint


RIGHT = {
    "model": ("model", part("Plain")),
    "model that looks at numbers": ("model", part("OnNumbers")),
    "block": ("model", dhen()),
    "head": ("model", {"name": "dnn", "head": part("Head")}),
    "sequence encoder": (POOLING, part("Mean")),
    "optimizer": ("optimizer", part("Descent")),
    "planner": ("planning.planner", part("FirstDevice")),
}


@pytest.mark.parametrize("kind", RIGHT)
def test_a_right_part_passes_and_draws_no_random_number(kind: str) -> None:
    chosen = experiment(*RIGHT[kind])
    before = torch.get_rng_state()
    chosen.check()
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_model_that_has_nothing_to_train_is_refused_before_data_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.csv", 400)
    chosen = experiment("model", part("Sum", frozen=frozen))
    words = r"^model: faulty_parts:Sum: has no trainable parameter, .*\n  hint: give the model one"
    with pytest.raises(ConfigError, match=words):
        train(chosen, "run")
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


def test_a_model_without_parameters_trains_where_the_steps_before_it_have_some(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the pooling of a sequence and the projection of a narrow table are trained."""
    monkeypatch.chdir(tmp_path)
    write_log(tmp_path / "log.csv", 400)
    for path, section in (("embeddings.tables", {"user": {"dim": 4}}), (POOLING, {"name": "attention"})):
        values = config_values(tmp_path)
        values["training"] |= {"max_steps": 3}
        set_by_path(values, "model", part("Sum"))
        set_by_path(values, path, section)
        outcome = train(parse_config(Experiment, values), f"run-{path}")
        assert outcome.step == 3


def test_flops_of_plain_layers_are_counted() -> None:
    """The inputs are 1 dense feature and 4 fields of 8, so 33 numbers; then 5 hidden units and 1 logit."""
    schema = encoded_schema(*_features(experiment(*RIGHT["model"])), defaultdict(lambda: 10))
    for name in ("Plain", "OnNumbers"):
        assert size_of(experiment("model", part(name)), schema).flops == 2 * (33 * 5 + 5)
    grown = sized_experiments(grown_experiments(experiment("model", part("Plain", hidden=50)), 3), schema)
    assert [each.size.flops for each in grown] == sorted({each.size.flops for each in grown})


def test_flops_of_blocks_heads_and_sequences_are_counted() -> None:
    """Four fields and the one of the dense features make 5, each mixed by an 8 x 8 product."""
    chosen = experiment("model", dhen())
    schema = encoded_schema(*_features(chosen), defaultdict(lambda: 10))
    plain = experiment("model", {"name": "dhen", "layer": {"blocks": [{"name": "linear", "outputs": 5}]}})
    added = size_of(chosen, schema).flops - size_of(plain, schema).flops
    layers = 2
    assert added == layers * (2 * 5 * 8 * 8 - 2 * 5 * 5 * 8)
    head = {"name": "dnn", "head": part("Head")}
    assert size_of(experiment("model", head), schema).flops == 2 * 33
    assert size_of(experiment(*RIGHT["sequence encoder"]), schema).flops > 0


def test_flops_that_cannot_be_counted_say_what_to_define() -> None:
    chosen = experiment("model", part("NoProducts"))
    schema = encoded_schema(*_features(chosen), defaultdict(lambda: 10))
    with pytest.raises(FlopsUnknown, match=r"faulty_parts:NoProducts defines no flops\(\).*\n  hint: define flops\(\)"):
        size_of(chosen, schema)


def test_a_model_that_fails_for_larger_batches_is_named_then() -> None:
    chosen = experiment("model", part("LogitsOf", what="large batches"))
    chosen.check()
    model = chosen.model.build_checked(ModelDims(dense=1, features=4, dim=8, tasks=1))
    dense = DensePart(_given, model, Outputs([Task("y")]), autocast=False, compiled=False, dropout=0.0)  # type: ignore[arg-type]
    with pytest.raises(
        ConfigError, match=r"LogitsOf: forward returned \(1, 30\), expected \(rows, tasks\) = \(30, 1\)"
    ):
        dense(torch.zeros(30, 1), {}, {})


def test_an_exception_while_training_is_told_by_the_lines_of_the_part() -> None:
    model = experiment("model", part("Raises")).model.build_checked(ModelDims(dense=1, features=4, dim=8, tasks=1))
    with pytest.raises(RuntimeError) as raised:
        model(torch.zeros(2, 1), torch.zeros(2, 4, 8))
    assert len(traceback.extract_tb(raised.value.__traceback__)) > 5
    explained = explained_failure(raised.value)
    assert explained is not None
    assert re.fullmatch(
        rf"faulty_parts:Raises raised RuntimeError: mat1 .*\n(  .*, in test_an.*\n)?  {FILE}, line \d+, in logits: .*",
        explained.problem,
    )
    assert explained_failure(RuntimeError("of our own")) is None


def test_the_command_line_prints_the_lines_of_the_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "log.csv", 200)
    values = config_values(tmp_path) | {"model": part("Late")}
    (tmp_path / "late.yaml").write_text(json.dumps(values))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["ziggurat", "train", "late.yaml"])
    with pytest.raises(SystemExit, match="1"):
        main()
    printed = capsys.readouterr().err
    expected = (
        rf"error: faulty_parts:Late raised FileNotFoundError: .*\n  {FILE}, line \d+, in logits: .*\nhint:  correct"
    )
    assert re.search(expected, printed)
    assert "Traceback" not in printed


def test_a_planner_keeps_to_the_users_constraints() -> None:
    config = PlanningConfig.model_validate(
        {"planner": part("FirstDevice"), "tables": {"users": {"sharding": "row_wise"}}}
    )
    problem = small_problem(2)
    with pytest.raises(ConfigError, match=r"FirstDevice: plan places table 'users' as .*table_wise.* for .*row_wise"):
        plan_tables(problem.tables, None, problem.topology, config, 64)
    config = PlanningConfig.model_validate({"planner": part("FirstDevice")})
    assert plan_tables(problem.tables, None, problem.topology, config, 64).plan.placements["users"].ranks == (0,)


def _features(chosen: Experiment) -> tuple[Any, Any]:
    return chosen.features, chosen.data.targets


def _given(rows: Any, masks: Any, dense_BF: Any) -> torch.Tensor:
    return torch.zeros(30, 4, 8)

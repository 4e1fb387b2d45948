"""The names that the package offers: all of them literally, each loads on first use, and docs/api.md lists each."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ziggurat

FUNCTIONS = {
    "build_ensemble", "check_installation", "choose_policies", "compare_planners", "diff_checkpoints",
    "draft_config", "evaluate", "export", "export_onnx", "find_dataset", "gather_checkpoint", "generate",
    "get_dataset", "ingest", "init", "inspect_checkpoint", "json_schema", "judge_policies", "list_checkpoints",
    "load_experiment", "load_policies_config", "load_run",
    "measure_disk", "measure_lookups", "measure_memory", "open_checkpoints",
    "partition_towers", "plan",
    "predict", "predict_files", "prepare", "prune_checkpoints", "report_run", "scale",
    "search_hyperparameters", "serve", "to_yaml", "train",
    "train_planner", "train_policies", "verify", "verify_checkpoints", "write_partition", "write_plan",
    "write_policies", "write_scale",
}  # fmt: skip
CLASSES = {
    "BuiltEnsemble", "CheckpointFolder", "Comparison", "Dataset", "Ensemble", "Experiment", "Exported", "ExportedOnnx",
    "Follower", "GeneratorConfig", "MetricSet", "Outcome", "Partitioned", "Plan", "PlanEstimate", "Predicted",
    "Predictor", "Run", "ScaleResult", "Scaled", "Searched", "Shampoo", "SwappablePredictor",
}  # fmt: skip
ERRORS = {
    "AlreadyTraining", "ConfigError", "DataError", "DivergedError", "EnvironmentMismatch", "FeatureError",
    "ForkedProcess", "InvalidSection", "LostRank", "NoFeasiblePlan", "OutOfMemory", "PredictorClosed", "ReadersLost",
    "RunFolderError", "WorkersLost", "ZigguratError",
}  # fmt: skip
CONSTANTS = {"DATASETS", "GENERATOR_SHAPES", "__version__"}
NAMES = FUNCTIONS | CLASSES | ERRORS | CONSTANTS

PACKAGE = Path(ziggurat.__file__).parent
PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
COMMANDS = {
    "init": "draft_config", "prepare": "prepare", "plan": "plan", "ingest": "ingest", "train": "train",
    "evaluate": "evaluate", "predict": "predict_files", "report": "report_run", "scale": "scale",
    "generate": "generate", "schema": "json_schema", "doctor": "check_installation", "checkpoint": "list_checkpoints",
    "datasets": "get_dataset", "verify": "verify", "search": "search_hyperparameters",
    "ensemble": "build_ensemble", "export": "export", "serve": "serve", "towers": "partition_towers",
    "policies": "train_policies",
}  # fmt: skip


def test_no_name_is_added_or_removed_unnoticed() -> None:
    assert set(ziggurat.__all__) == NAMES
    assert len(ziggurat.__all__) == len(NAMES)
    assert set(dir(ziggurat)) >= NAMES


@pytest.mark.parametrize("name", sorted(NAMES))
def test_each_name_loads_and_is_of_its_kind(name: str) -> None:
    offered = getattr(ziggurat, name)
    assert inspect.isfunction(offered) == (name in FUNCTIONS)
    assert inspect.isclass(offered) == (name in CLASSES | ERRORS)
    if name in ERRORS:
        assert issubclass(offered, ziggurat.ZigguratError)
    if name in FUNCTIONS | CLASSES | ERRORS:
        assert inspect.getdoc(offered)


def test_no_name_is_that_of_a_subpackage() -> None:
    """Importing a subpackage binds its name in the package, which would then hide the public one."""
    assert {path.stem for path in PACKAGE.iterdir()} & (NAMES - {"__version__"}) == set()


def test_type_checkers_see_every_name() -> None:
    block = (
        (PACKAGE / "__init__.py").read_text(encoding="utf-8").partition("if TYPE_CHECKING:")[2].partition("__all__")[0]
    )
    seen = set(re.findall(r"\b\w+\b", re.sub(r"from [\w.]+ import|\w+ as\b", "", block)))
    assert NAMES - seen == {"__version__"}


def test_every_command_has_its_function() -> None:
    from ziggurat.cli.main import app

    commands = {command.name for command in app.registered_commands} | {group.name for group in app.registered_groups}
    assert commands == set(COMMANDS)
    assert set(COMMANDS.values()) <= FUNCTIONS


def test_the_page_lists_every_name_once() -> None:
    listed = re.findall(r"^\| `(\w+)(?:\(.*?\))?` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(listed) == sorted(NAMES)


def test_importing_the_package_loads_nothing_but_the_version() -> None:
    check = "import sys; before = set(sys.modules); import ziggurat; ziggurat.__version__; "
    check += "known = sys.stdlib_module_names; "
    check += "print(sorted(name for name in set(sys.modules) - before if name.partition('.')[0] not in known))"
    run = subprocess.run([sys.executable, "-c", check], check=True, capture_output=True, text=True)
    assert run.stdout.strip() == "['ziggurat', 'ziggurat._version']"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'ziggurat' has no attribute 'trian'"):
        _ = ziggurat.trian  # pyright: ignore[reportAttributeAccessIssue]

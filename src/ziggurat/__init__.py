"""ziggurat: from raw interaction logs to a trained, evaluated recommendation model, with one config.

The public names below load on first use, so that ``import ziggurat`` costs milliseconds and imports no torch. Each
command of the command line has its function here; docs/api.md lists them by what they are for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ziggurat._version import __version__

if TYPE_CHECKING:
    from ziggurat.checkpoint.folder import CheckpointFolder
    from ziggurat.checkpoint.follow.follower import Follower
    from ziggurat.checkpoint.inspect.consolidate import gather as gather_checkpoint
    from ziggurat.checkpoint.inspect.differences import differences as diff_checkpoints
    from ziggurat.checkpoint.inspect.inspection import inspect as inspect_checkpoint
    from ziggurat.checkpoint.inspect.inspection import listing as list_checkpoints
    from ziggurat.checkpoint.inspect.pruning import prune as prune_checkpoints
    from ziggurat.checkpoint.inspect.run_folders import open_folder as open_checkpoints
    from ziggurat.checkpoint.inspect.verification import verify as verify_checkpoints
    from ziggurat.cli.doctor.checks import all_checks as check_installation
    from ziggurat.cli.init import draft_config, init
    from ziggurat.core.errors import (
        AlreadyTraining,
        ConfigError,
        DataError,
        DivergedError,
        EnvironmentMismatch,
        FeatureError,
        ForkedProcess,
        InvalidSection,
        LostRank,
        NoFeasiblePlan,
        OutOfMemory,
        PredictorClosed,
        ReadersLost,
        RunFolderError,
        WorkersLost,
        ZigguratError,
    )
    from ziggurat.core.plan import Plan
    from ziggurat.data.encoded.dataset import Dataset
    from ziggurat.data.public.catalogue import CATALOGUE as DATASETS
    from ziggurat.data.public.catalogue import find_dataset, get_dataset
    from ziggurat.data.synthetic.config import GeneratorConfig
    from ziggurat.data.synthetic.generate import generate
    from ziggurat.data.synthetic.shapes import SHAPES as GENERATOR_SHAPES
    from ziggurat.exporting.export import Exported, export
    from ziggurat.exporting.onnx.write import ExportedOnnx, export_onnx
    from ziggurat.metrics.metric_set import MetricSet
    from ziggurat.optim.shampoo.shampoo import Shampoo
    from ziggurat.planning.comparison import Comparison
    from ziggurat.planning.plan_estimate import PlanEstimate
    from ziggurat.policies.choosing import choose as choose_policies
    from ziggurat.policies.judging import judge as judge_policies
    from ziggurat.policies.run_folder import load_config as load_policies_config
    from ziggurat.policies.training import train as train_policies
    from ziggurat.report.gather import report_run
    from ziggurat.report.plan.page import write_plan
    from ziggurat.report.policies.page import write_policies
    from ziggurat.report.scaling.page import write_scale
    from ziggurat.report.towers.page import write_partition
    from ziggurat.search.hyperparameters import Searched, search_hyperparameters
    from ziggurat.serving.http.serve import serve
    from ziggurat.storage.tier_benchmark import disk_tiers as measure_disk
    from ziggurat.storage.tier_benchmark import memory_tier as measure_memory
    from ziggurat.training.api import (
        BuiltEnsemble,
        Ensemble,
        Outcome,
        Partitioned,
        Predicted,
        Predictor,
        SwappablePredictor,
        build_ensemble,
        compare_planners,
        evaluate,
        load_experiment,
        load_run,
        partition_towers,
        plan,
        predict,
        predict_files,
        prepare,
        train,
        train_planner,
    )
    from ziggurat.training.experiment import Experiment, json_schema, to_yaml
    from ziggurat.training.ingest import ingest
    from ziggurat.training.placement.kernel_benchmark import measure as measure_lookups
    from ziggurat.training.run_folder.run import Run
    from ziggurat.training.scaling.result import ScaleResult
    from ziggurat.training.scaling.sweep import Scaled, scale
    from ziggurat.verification.verify import verify

__all__ = [
    "DATASETS",
    "GENERATOR_SHAPES",
    "AlreadyTraining",
    "BuiltEnsemble",
    "CheckpointFolder",
    "Comparison",
    "ConfigError",
    "DataError",
    "Dataset",
    "DivergedError",
    "Ensemble",
    "EnvironmentMismatch",
    "Experiment",
    "Exported",
    "ExportedOnnx",
    "FeatureError",
    "Follower",
    "ForkedProcess",
    "GeneratorConfig",
    "InvalidSection",
    "LostRank",
    "MetricSet",
    "NoFeasiblePlan",
    "OutOfMemory",
    "Outcome",
    "Partitioned",
    "Plan",
    "PlanEstimate",
    "Predicted",
    "Predictor",
    "PredictorClosed",
    "ReadersLost",
    "Run",
    "RunFolderError",
    "ScaleResult",
    "Scaled",
    "Searched",
    "Shampoo",
    "SwappablePredictor",
    "WorkersLost",
    "ZigguratError",
    "__version__",
    "build_ensemble",
    "check_installation",
    "choose_policies",
    "compare_planners",
    "diff_checkpoints",
    "draft_config",
    "evaluate",
    "export",
    "export_onnx",
    "find_dataset",
    "gather_checkpoint",
    "generate",
    "get_dataset",
    "ingest",
    "init",
    "inspect_checkpoint",
    "json_schema",
    "judge_policies",
    "list_checkpoints",
    "load_experiment",
    "load_policies_config",
    "load_run",
    "measure_disk",
    "measure_lookups",
    "measure_memory",
    "open_checkpoints",
    "partition_towers",
    "plan",
    "predict",
    "predict_files",
    "prepare",
    "prune_checkpoints",
    "report_run",
    "scale",
    "search_hyperparameters",
    "serve",
    "to_yaml",
    "train",
    "train_planner",
    "train_policies",
    "verify",
    "verify_checkpoints",
    "write_partition",
    "write_plan",
    "write_policies",
    "write_scale",
]

_ERRORS = "ziggurat.core.errors"
_API = "ziggurat.training.api"
_INSPECT = "ziggurat.checkpoint.inspect"

_SOURCES: dict[str, str] = {
    "AlreadyTraining": _ERRORS,
    "BuiltEnsemble": _API,
    "CheckpointFolder": "ziggurat.checkpoint.folder",
    "Comparison": "ziggurat.planning.comparison",
    "ConfigError": _ERRORS,
    "DATASETS": "ziggurat.data.public.catalogue:CATALOGUE",
    "DataError": _ERRORS,
    "Dataset": "ziggurat.data.encoded.dataset",
    "DivergedError": _ERRORS,
    "Ensemble": _API,
    "EnvironmentMismatch": _ERRORS,
    "Experiment": "ziggurat.training.experiment",
    "Exported": "ziggurat.exporting.export",
    "ExportedOnnx": "ziggurat.exporting.onnx.write",
    "FeatureError": _ERRORS,
    "Follower": "ziggurat.checkpoint.follow.follower",
    "ForkedProcess": _ERRORS,
    "GENERATOR_SHAPES": "ziggurat.data.synthetic.shapes:SHAPES",
    "GeneratorConfig": "ziggurat.data.synthetic.config",
    "InvalidSection": _ERRORS,
    "LostRank": _ERRORS,
    "MetricSet": "ziggurat.metrics.metric_set",
    "NoFeasiblePlan": _ERRORS,
    "OutOfMemory": _ERRORS,
    "Outcome": _API,
    "Partitioned": _API,
    "Plan": "ziggurat.core.plan",
    "PlanEstimate": "ziggurat.planning.plan_estimate",
    "Predicted": _API,
    "Predictor": _API,
    "PredictorClosed": _ERRORS,
    "ReadersLost": _ERRORS,
    "Run": "ziggurat.training.run_folder.run",
    "RunFolderError": _ERRORS,
    "ScaleResult": "ziggurat.training.scaling.result",
    "Scaled": "ziggurat.training.scaling.sweep",
    "Searched": "ziggurat.search.hyperparameters",
    "Shampoo": "ziggurat.optim.shampoo.shampoo",
    "SwappablePredictor": _API,
    "WorkersLost": _ERRORS,
    "ZigguratError": _ERRORS,
    "build_ensemble": _API,
    "check_installation": "ziggurat.cli.doctor.checks:all_checks",
    "choose_policies": "ziggurat.policies.choosing:choose",
    "compare_planners": _API,
    "diff_checkpoints": f"{_INSPECT}.differences:differences",
    "draft_config": "ziggurat.cli.init",
    "evaluate": _API,
    "export": "ziggurat.exporting.export",
    "export_onnx": "ziggurat.exporting.onnx.write",
    "find_dataset": "ziggurat.data.public.catalogue",
    "gather_checkpoint": f"{_INSPECT}.consolidate:gather",
    "generate": "ziggurat.data.synthetic.generate",
    "get_dataset": "ziggurat.data.public.catalogue",
    "ingest": "ziggurat.training.ingest",
    "init": "ziggurat.cli.init",
    "inspect_checkpoint": f"{_INSPECT}.inspection:inspect",
    "json_schema": "ziggurat.training.experiment",
    "judge_policies": "ziggurat.policies.judging:judge",
    "list_checkpoints": f"{_INSPECT}.inspection:listing",
    "load_experiment": _API,
    "load_policies_config": "ziggurat.policies.run_folder:load_config",
    "load_run": _API,
    "measure_disk": "ziggurat.storage.tier_benchmark:disk_tiers",
    "measure_lookups": "ziggurat.training.placement.kernel_benchmark:measure",
    "measure_memory": "ziggurat.storage.tier_benchmark:memory_tier",
    "open_checkpoints": f"{_INSPECT}.run_folders:open_folder",
    "partition_towers": _API,
    "plan": _API,
    "predict": _API,
    "predict_files": _API,
    "prepare": _API,
    "prune_checkpoints": f"{_INSPECT}.pruning:prune",
    "report_run": "ziggurat.report.gather",
    "scale": "ziggurat.training.scaling.sweep",
    "search_hyperparameters": "ziggurat.search.hyperparameters",
    "serve": "ziggurat.serving.http.serve",
    "to_yaml": "ziggurat.training.experiment",
    "train": _API,
    "train_planner": _API,
    "train_policies": "ziggurat.policies.training:train",
    "verify": "ziggurat.verification.verify",
    "verify_checkpoints": f"{_INSPECT}.verification:verify",
    "write_partition": "ziggurat.report.towers.page",
    "write_plan": "ziggurat.report.plan.page",
    "write_policies": "ziggurat.report.policies.page",
    "write_scale": "ziggurat.report.scaling.page",
}
"""Public name -> the module that defines it, or ``MODULE:NAME`` where it has another name there."""


def __getattr__(name: str) -> Any:
    if name not in _SOURCES:
        raise AttributeError(f"module 'ziggurat' has no attribute {name!r}")
    module, _, attribute = _SOURCES[name].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute or name)
    except ModuleNotFoundError as error:
        from ziggurat.core.engine import explain_missing_module

        explained = explain_missing_module(error)
        if explained is None:
            raise
        raise explained from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The Python interface: loads, prepares, plans, trains, evaluates and predicts, as the command line does.

>>> import ziggurat
>>> experiment = ziggurat.load_experiment("examples/movielens.yaml")
>>> outcome = ziggurat.train(experiment)
>>> probabilities = ziggurat.predict(outcome.run.folder, rows)
"""

from __future__ import annotations

from ziggurat.training.ensemble.build import BuiltEnsemble, build_ensemble
from ziggurat.training.ensemble.ensemble import Ensemble
from ziggurat.training.evaluate_run import evaluate
from ziggurat.training.experiment import load_experiment
from ziggurat.training.partitioning.partition import Partitioned, partition_towers
from ziggurat.training.placement.compression import propose as propose_compression
from ziggurat.training.placement.planning import compare_planners, plan, train_planner
from ziggurat.training.prediction.files import Predicted, predict_files
from ziggurat.training.prediction.predictor import Predictor, predict
from ziggurat.training.prediction.swappable import SwappablePredictor
from ziggurat.training.preparation import prepare, prepared_folder
from ziggurat.training.run_folder.run import open_run as load_run
from ziggurat.training.train import Outcome, train

__all__ = [
    "BuiltEnsemble",
    "Ensemble",
    "Outcome",
    "Partitioned",
    "Predicted",
    "Predictor",
    "SwappablePredictor",
    "build_ensemble",
    "compare_planners",
    "evaluate",
    "load_experiment",
    "load_run",
    "partition_towers",
    "plan",
    "predict",
    "predict_files",
    "prepare",
    "prepared_folder",
    "propose_compression",
    "train",
    "train_planner",
]

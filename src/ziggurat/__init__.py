"""ziggurat: raw interaction logs to a trained, evaluated recommendation model, with one config.

The names below load on first use, so that ``import ziggurat`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ziggurat._version import __version__

if TYPE_CHECKING:
    from ziggurat.training.api import Predictor as Predictor
    from ziggurat.training.api import compare_planners as compare_planners
    from ziggurat.training.api import evaluate as evaluate
    from ziggurat.training.api import load_experiment as load_experiment
    from ziggurat.training.api import load_run as load_run
    from ziggurat.training.api import plan as plan
    from ziggurat.training.api import predict as predict
    from ziggurat.training.api import prepare as prepare
    from ziggurat.training.api import train as train
    from ziggurat.training.scaling.sweep import scale as scale

__all__ = [
    "Predictor",
    "__version__",
    "compare_planners",
    "evaluate",
    "load_experiment",
    "load_run",
    "plan",
    "predict",
    "prepare",
    "scale",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        module = "ziggurat.training.scaling.sweep" if name == "scale" else "ziggurat.training.api"
        return getattr(importlib.import_module(module), name)
    raise AttributeError(f"module 'ziggurat' has no attribute {name!r}")

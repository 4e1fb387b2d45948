"""Which features of an experiment may get any pipeline, so that whatever a search finds can be written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from ziggurat.core.errors import ConfigError
from ziggurat.features.config import CategoricalFeature, NumericFeature, TimeFeature
from ziggurat.search.pipelines.evaluation import AnyPipeline
from ziggurat.search.pipelines.experiment_table import Searched, searched_features, with_pipelines
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, TimePipeline
from ziggurat.training.experiment import Experiment

_FORMS: dict[type[Searched], tuple[AnyPipeline, ...]] = {
    NumericFeature: (
        NumericPipeline(),
        NumericPipeline(discretiser="quantile_bins", scaler="none", missing_flag=True),
        NumericPipeline(discretiser="spline", scaler="none"),
    ),
    CategoricalFeature: (
        CategoricalPipeline(encoder="target"),
        CategoricalPipeline(encoder="one_hot"),
        CategoricalPipeline(encoder="hash"),
    ),
    TimeFeature: (TimePipeline(encoder="cyclic_and_age"), TimePipeline(encoder="age")),
}
"""Pipelines of all forms that a feature takes in a config: numbers, several numbers, ids, and with further features."""


@dataclass(frozen=True, slots=True)
class Replaceable:
    """What a search may change.

    Attributes:
        searched: the features, or columns of times, that get pipelines.
        left: feature -> why it stays as it is; empty if no pipeline is made for its kind.
    """

    searched: tuple[Searched, ...]
    left: Mapping[str, str]


def replaceable(experiment: Experiment) -> Replaceable:
    """Returns the features of which every pipeline makes a config that can be trained.

    Raises:
        ConfigError: there are none, or the first label is not binary.
    """
    features = searched_features(experiment)
    why = _why_not(experiment, features)
    reasons = {} if not why else {each.name: reason for each in features if (reason := _why_not(experiment, [each]))}
    kept = tuple(each for each in features if each.name not in reasons)
    if reasons and kept:
        why = _why_not(experiment, kept)
    if why or not kept:
        name, reason = next(iter(reasons.items()), ("", why))
        raise ConfigError(
            f"features: none can get any pipeline{f'; {name!r}' if name else ''}: {reason}",
            "rename or remove the feature or the setting that it names",
        )
    names = {each.name for each in features}
    others = [each.name for each in experiment.features if not isinstance(each, TimeFeature) and each.name not in names]
    return Replaceable(kept, {**dict.fromkeys(others, ""), **reasons})


def _why_not(experiment: Experiment, features: Sequence[Searched]) -> str:
    """Returns why some config with pipelines for these features cannot be trained; empty if all can."""
    forms = [_FORMS[type(each)] for each in features]
    for row in zip_longest(*forms):
        chosen = {each.name: form or own[0] for each, form, own in zip(features, row, forms, strict=True)}
        try:
            with_pipelines(experiment, chosen, "checked").check()
        except ConfigError as error:
            return error.problem.splitlines()[0]
    return ""

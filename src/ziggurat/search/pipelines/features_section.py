"""Writes a pipeline as entries of the ``features`` section, which prepare, predict, export and serving apply alike.

A number keeps its name; its missing flag is a feature of its own, ``NAME_missing``. Intervals are ``bucketise``, whose
ids look up an embedding table: a linear layer over one-hot intervals is one. For the same reason a category that is
one-hot or hashed remains one that looks up a table, of its vocabulary or of hashed rows; where a model without tables
is wanted, ``numbers`` makes dense numbers of it. Target means and places in an order are always dense numbers.
"""

from __future__ import annotations

from typing import Any

from ziggurat.core.errors import ConfigError
from ziggurat.data.readers.cells.times import holds_hours
from ziggurat.features.config import CategoricalFeature, NumericFeature, TimeFeature
from ziggurat.search.pipelines.blocks.categories import MOST_CATEGORIES
from ziggurat.search.pipelines.blocks.steps import steps_of
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline, TimePipeline

_OF_DATES = ("weekday", "month")
"""Parts of times that have no hours."""


def features_of(
    feature: NumericFeature | CategoricalFeature | TimeFeature,
    pipeline: NumericPipeline | CategoricalPipeline | TimePipeline,
    *,
    numbers: bool = False,
) -> list[dict[str, Any]]:
    """Returns the entries of a config that apply a pipeline to the column of a feature.

    Args:
        feature: the feature whose column it is; its transforms or its encoder are replaced.
        pipeline: what to apply.
        numbers: whether categories become dense numbers also where a table of vectors could be looked up.

    Raises:
        ConfigError: the pipeline is one of another kind of feature.
    """
    match feature, pipeline:
        case NumericFeature(), NumericPipeline():
            return _number(feature, pipeline)
        case CategoricalFeature(), CategoricalPipeline():
            return [_category(feature, pipeline, numbers=numbers)]
        case TimeFeature(), TimePipeline():
            return _time(feature, pipeline)
        case _:
            raise ConfigError(
                f"feature {feature.name!r} of kind {feature.kind} was given a pipeline of kind {pipeline.kind}",
                f"give a {feature.kind} pipeline",
            )


def _number(feature: NumericFeature, pipeline: NumericPipeline) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{**_named(feature), "kind": "numeric", "transforms": steps_of(pipeline)}]
    if pipeline.missing_flag:
        flag = {"name": f"{feature.name}_missing", "column": feature.source_column, "kind": "numeric"}
        made.append({**flag, "transforms": [{"name": "missing_flag"}]})
    return made


def _category(feature: CategoricalFeature, pipeline: CategoricalPipeline, *, numbers: bool) -> dict[str, Any]:
    if not numbers and pipeline.encoder in {"one_hot", "hash"}:
        kept = feature.model_dump(mode="json", exclude_defaults=True)
        kept |= {"name": feature.name, "kind": "categorical"}
        if pipeline.encoder == "hash":
            kept["encoder"] = {"name": "hash", "rows": pipeline.buckets + 1}
        return kept
    encoding: dict[str, Any] = {"name": pipeline.encoder}
    if pipeline.encoder == "one_hot":
        encoding["categories"] = MOST_CATEGORIES
    if pipeline.encoder == "hash":
        encoding["buckets"] = pipeline.buckets
    made = {**_named(feature), "kind": "encoded", "type": feature.type, "encoding": encoding}
    if pipeline.imputer == "most_frequent" and pipeline.encoder != "hash":
        made["missing"] = "most_frequent"
    if pipeline.encoder in {"target", "ordinal"}:
        made["transforms"] = [{"name": "standardise"}]
    return made


def _time(feature: TimeFeature, pipeline: TimePipeline) -> list[dict[str, Any]]:
    shared = {"column": feature.source_column, "kind": "time"}
    if feature.format is not None:
        shared["format"] = feature.format
    cyclic = ("hour", "weekday", "month") if feature.format is None or holds_hours(feature.format) else _OF_DATES
    chosen = {"cyclic": cyclic, "age": ("age",), "cyclic_and_age": (*cyclic, "age")}[pipeline.encoder]
    return [{"name": f"{feature.name}_{part}", **shared, "part": part} for part in chosen]


def _named(feature: NumericFeature | CategoricalFeature) -> dict[str, Any]:
    return {"name": feature.name, **({"column": feature.column} if feature.column is not None else {})}

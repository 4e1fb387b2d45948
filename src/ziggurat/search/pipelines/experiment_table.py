"""The training rows of an experiment as a table for the search, and an experiment with the pipelines found.

The rows are prepared once with features that change nothing: numbers as they are, filled with the median beside a flag
that says where they were missing, a vocabulary of all values, and of a time its day and the time of the day. The split,
the labels and the rows that cannot be used are therefore those of the training, and no validation or test row is in the
table. All time features of a column are one: its name is the column's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ziggurat.core.config import parse_config
from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Progress
from ziggurat.core.schema import label_column
from ziggurat.data.encoded.manifest import ENCODERS
from ziggurat.features.config import CategoricalFeature, FeatureConfig, IdFeature, NumericFeature, TimeFeature
from ziggurat.features.encoders.vocabulary import VocabularyEncoder
from ziggurat.features.transform import Transform
from ziggurat.search.pipelines.evaluation import AnyPipeline
from ziggurat.search.pipelines.features_section import features_of
from ziggurat.search.pipelines.table import MISSING_CODE, Column, Floats, Table
from ziggurat.search.pipelines.time_column import neutral_times, seconds_of
from ziggurat.training.experiment import Experiment
from ziggurat.training.preparation import prepare

_FLAG = "_is_missing"
Searched = NumericFeature | CategoricalFeature | TimeFeature


def searched_features(experiment: Experiment) -> list[Searched]:
    """Returns the features that a search chooses pipelines for: numbers, categories with a table of their own, and one
    for each column of which there are time features, named after the column if no other feature is.

    Raises:
        ConfigError: there are none, or the first label is not binary.
    """
    label = experiment.data.labels[0]
    if label.kind != "binary":
        raise ConfigError(
            f"label {label.name!r} is {label.kind}; a search of pipelines needs a binary one",
            "put a binary label first, or search with ziggurat.search.PipelineSearch",
        )
    if experiment.data.negatives is not None:
        raise ConfigError("data.negatives: a search of pipelines needs a log with negatives", "leave it out")
    tables = [each.table_name for each in experiment.features if isinstance(each, IdFeature)]
    others = {each.name for each in experiment.features if not isinstance(each, TimeFeature)}
    found: dict[str, Searched] = {}
    for each in experiment.features:
        if isinstance(each, NumericFeature) or (
            isinstance(each, CategoricalFeature) and tables.count(each.table_name) == 1
        ):
            found[_key(each)] = each
        elif isinstance(each, TimeFeature) and _key(each) not in found:
            name = each.name if each.source_column in others else each.source_column
            found[_key(each)] = each.model_copy(update={"name": name, "column": each.source_column})
    if not found:
        raise ConfigError(
            "features: none is numeric, a time, or categorical with a table of its own, so that there is nothing to "
            "search",
            "add such features",
        )
    return list(found.values())


def _key(feature: FeatureConfig) -> str:
    """Returns what a feature is one with: all time features of a column are one."""
    return f"@{feature.source_column}" if isinstance(feature, TimeFeature) else feature.name


def neutral(experiment: Experiment, searched: Sequence[Searched]) -> Experiment:
    """Returns the experiment with features that only carry the raw values of the searched ones."""
    features: list[dict[str, Any]] = []
    for each in searched:
        shared: dict[str, Any] = {"column": each.source_column}
        if isinstance(each, NumericFeature):
            fill = [{"name": "fill", "value": "median"}]
            features.append({**shared, "name": each.name, "kind": "numeric", "transforms": fill})
            flag = [{"name": "missing_flag"}]
            features.append({**shared, "name": _flag_of(each, searched), "kind": "numeric", "transforms": flag})
        elif isinstance(each, TimeFeature):
            features += neutral_times(each, _stem_of(each, searched))
        else:
            encoder = {"name": "vocabulary", "min_count": 1}
            features.append({**shared, "name": each.name, "kind": "categorical", "type": each.type, "encoder": encoder})
    values = {**experiment.model_dump(mode="json"), "name": f"{experiment.name}-raw", "features": features}
    values |= {"evaluation": {}, "model": {"name": "logistic_regression"}, "embeddings": {"dim": 4}}
    return parse_config(Experiment, values, "search pipelines")


def _flag_of(feature: Searched, searched: Sequence[Searched]) -> str:
    """Returns the name of the feature that says where a number is missing, which no other feature has."""
    return _own(feature.name, searched, (_FLAG,)) + _FLAG


def _stem_of(feature: Searched, searched: Sequence[Searched]) -> str:
    """Returns what the names of the features that carry a column's times begin with."""
    return _own(feature.name, searched, ("_age", "_weekday", "_hour"))


def _own(name: str, searched: Sequence[Searched], ends: Sequence[str]) -> str:
    taken = {each.name for each in searched}
    while any(f"{name}{end}" in taken for end in ends):
        name += "_"
    return name


def table_of(
    experiment: Experiment, searched: Sequence[Searched], most_rows: int, seed: int, prepared: Path | None,
    progress: Progress,
) -> Table:  # fmt: skip
    """Returns the training rows as a table, at most ``most_rows`` of them, drawn with ``seed``.

    Args:
        experiment: the experiment.
        searched: the features that become columns, of :func:`searched_features`.
        most_rows: the most rows.
        seed: seeds the draw.
        prepared: folder of the raw values as a dataset; None: as in ``prepare``.
        progress: where to show progress.

    Raises:
        ZigguratError: the data cannot be prepared.
    """
    raw = neutral(experiment, searched)
    dataset = prepare(raw, folder=prepared, progress=progress)
    transform = Transform.load(dataset.folder / ENCODERS)
    blocks = dataset.split("train")
    label = label_column(experiment.data.labels[0].name)
    random = np.random.default_rng([seed, 7])
    share = min(1.0, most_rows / max(1, blocks.rows))
    columns: dict[str, list[Floats]] = {}
    for block in range(len(blocks.sizes)):
        batch = blocks.read(block)
        chosen = np.flatnonzero(random.random(batch.num_rows) < share) if share < 1 else np.arange(batch.num_rows)
        taken = batch.take(pa.array(chosen))
        for name in taken.schema.names:
            values = taken.column(name)
            if pa.types.is_floating(values.type) or pa.types.is_integer(values.type):
                columns.setdefault(name, []).append(values.to_numpy(zero_copy_only=False).astype(np.float64))
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    labels = joined[label]
    usable = np.flatnonzero(np.isfinite(labels))
    made: list[Column] = []
    for each in searched:
        if isinstance(each, TimeFeature):
            made.append(Column(each.name, "time", seconds_of(_stem_of(each, searched), joined, transform)[usable]))
            continue
        values = joined[each.name][usable]
        if isinstance(each, NumericFeature):
            missing = joined[_flag_of(each, searched)][usable] > 0
            made.append(Column(each.name, "numeric", np.where(missing, np.nan, values)))
        else:
            encoder = transform.encoders[each.name]
            assert isinstance(encoder, VocabularyEncoder)
            made.append(_category(each.name, values, encoder))
    return Table(tuple(made), (labels[usable] > 0.5).astype(np.int64), ("0", "1"), experiment.name)


def _category(name: str, rows: Floats, encoder: VocabularyEncoder) -> Column:
    """Returns the column of an encoder's rows, with the categories in ascending order as elsewhere."""
    keys = encoder.keys.to_pylist()
    order = sorted(range(len(keys)), key=keys.__getitem__)
    places = np.empty(encoder.rows, np.float64)
    places[: 1 + encoder.oov_rows] = MISSING_CODE
    places[1 + encoder.oov_rows + np.array(order, np.int64)] = np.arange(len(keys))
    texts, whole = tuple(str(keys[place]) for place in order), pa.types.is_integer(encoder.keys.type)
    return Column(name, "categorical", places[rows.astype(np.int64)], texts, whole, True)


def with_pipelines(experiment: Experiment, pipelines: Mapping[str, AnyPipeline], name: str) -> Experiment:
    """Returns the experiment with pipelines in place of what the searched features had.

    Args:
        experiment: the experiment.
        pipelines: feature, or column of times -> pipeline; features without one stay.
        name: the name of the experiment that is returned.

    Raises:
        ConfigError: the model cannot be built with them.
    """
    numbers = experiment.model.name == "logistic_regression"
    searched = {_key(each): each for each in searched_features(experiment)}
    features: list[dict[str, Any]] = []
    written = set[str]()
    for each in experiment.features:
        found = searched.get(_key(each))
        pipeline = None if found is None else pipelines.get(found.name)
        if found is None or pipeline is None:
            features.append(each.model_dump(mode="json"))
        elif found.name not in written:
            features += features_of(found, pipeline, numbers=numbers)
            written.add(found.name)
    values: dict[str, Any] = {**experiment.model_dump(mode="json"), "name": name, "features": features}
    tables = {str(each["name"]) for each in features if each["kind"] != "numeric" and _has_table(each)}
    slices = [each for each in experiment.evaluation.slices if each in tables]
    values["evaluation"] = {**values["evaluation"], "slices": slices}
    vectors = {each.get("table") or each["name"] for each in features if _has_table(each)}
    chosen = {name: each for name, each in values["embeddings"].get("tables", {}).items() if name in vectors}
    if "tables" in values["embeddings"]:
        values["embeddings"] = {**values["embeddings"], "tables": chosen}
    return parse_config(Experiment, values, "search pipelines")


def _has_table(feature: Mapping[str, Any]) -> bool:
    """Whether a feature of a config looks up an embedding table."""
    if feature["kind"] == "numeric":
        return any(step["name"] == "bucketise" for step in feature.get("transforms") or ())
    return feature["kind"] not in {"encoded", "time"} or feature.get("as") == "categorical"

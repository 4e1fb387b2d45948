"""The config of an experiment: parses it, checks its sections against each other, and writes it with all defaults."""

from __future__ import annotations

import functools
import io
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast

import pydantic
from pydantic.json_schema import GenerateJsonSchema
from ruamel.yaml import YAML

from ziggurat.checkpoint.config import CheckpointsConfig
from ziggurat.contracts.modules import check_model, check_sequence_encoder, check_trainable
from ziggurat.contracts.optimizers import check_dense_optimizer
from ziggurat.contracts.planners import check_planner
from ziggurat.core.config import Config, key_and_value, parse_config, set_by_path
from ziggurat.core.config_places import Location, display_path
from ziggurat.core.errors import ConfigError, nearest, shorten, within
from ziggurat.core.schema import Schema
from ziggurat.core.tables import Pooling
from ziggurat.core.untrusted import MAX_YAML_BYTES, Damage, parse_yaml, read_bytes
from ziggurat.embeddings.config import EmbeddingsConfig
from ziggurat.embeddings.layout import Layout, Positions, lay_out
from ziggurat.features.assemble import encoded_schema, with_several_codes
from ziggurat.features.config import (
    BagFeature,
    CategoricalFeature,
    DataConfig,
    FeatureConfig,
    InputFeature,
    NumericFeature,
    SequenceFeature,
    TimeFeature,
)
from ziggurat.features.inputs.categories import check_target_labels
from ziggurat.features.inputs.of_features import inputs_of
from ziggurat.features.negatives_config import InBatchNegatives
from ziggurat.features.tables import resolve_tables
from ziggurat.metrics.names import measured
from ziggurat.models.build import ModelConfig, model_dims
from ziggurat.models.deepfm import DeepFM
from ziggurat.models.model import Model, ModelSettings
from ziggurat.objectives.task import Task
from ziggurat.optim.dense import DenseOptimizerConfig
from ziggurat.optim.torch_optimizers import Adam
from ziggurat.parallel.config import ParallelConfig, TowerTransformConfig
from ziggurat.planning.config import PlanningConfig
from ziggurat.towers.config import TowersConfig
from ziggurat.towers.placed import with_towers
from ziggurat.towers.requirements import check_tower_transform
from ziggurat.training.config import EvaluationConfig, TrainingConfig

_UNREADABLE = Damage(ConfigError, "give a readable UTF-8 YAML file")
_NO_YAML = Damage(ConfigError, "check indentation, colons and quotes at that line")


class Experiment(Config):
    """The config of an experiment. ``ziggurat init`` writes one; ``ziggurat schema`` describes all keys."""

    name: str = pydantic.Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Names the run folder (runs/NAME) and the prepared dataset."""
    data: DataConfig
    """Files, labels, and the split of the rows."""
    features: tuple[FeatureConfig, ...] = pydantic.Field(min_length=1)
    """The inputs of the model."""
    embeddings: EmbeddingsConfig = EmbeddingsConfig()
    """Embedding tables: width, initialisation and row optimizer, with exceptions by table."""
    towers: TowersConfig | None = None
    """Groups of features whose embeddings are compressed together before the model; default: none."""
    model: ModelConfig = DeepFM.Config()
    """The interaction model."""
    optimizer: DenseOptimizerConfig = Adam()
    """The optimizer of everything that is not an embedding table."""
    training: TrainingConfig = TrainingConfig()
    """Length, batch size, schedule, precision, how often to save."""
    checkpoints: CheckpointsConfig = CheckpointsConfig()
    """The store and the format of checkpoints."""
    parallel: ParallelConfig = ParallelConfig()
    """Settings for training with several ranks."""
    evaluation: EvaluationConfig = EvaluationConfig()
    """Slices and batch size of evaluation."""
    planning: PlanningConfig = PlanningConfig()
    """Placement of embedding tables on ranks."""

    @pydantic.model_validator(mode="after")
    def _formats_of_times(self) -> Self:
        """Sets the formats of time features, for which data.time_format is the default."""
        if any(isinstance(feature, TimeFeature) and feature.format is None for feature in self.features):
            time, written = self.data.time, self.data.time_format
            resolved = [
                feature.resolved(time, written) if isinstance(feature, TimeFeature) else feature
                for feature in self.features
            ]
            object.__setattr__(self, "features", tuple(resolved))
        return self

    def check(self) -> None:
        """Checks the sections against each other, and that the model can be built on the features.

        Parts from outside the package are called with a few rows, and what they return is checked.

        Raises:
            ConfigError: a value is not possible; the message names the key, the value and the possible values.
        """
        check_target_labels(self.features, self.data)
        several = with_several_codes(inputs_of(self.features))
        slices = [each.name for each in inputs_of(self.features) if _has_one_id(each) and each.name not in several]
        for name in self.evaluation.slices:
            if name not in slices:
                close = nearest(name, slices)
                hint = f"did you mean {close!r}?" if close else f"there are: {', '.join(slices) or 'none'}"
                raise ConfigError(f"evaluation.slices: {name!r} is no feature with one id a row; {hint}")
        self._check_monitor()
        self._check_several_codes()
        self._check_negative_rate()
        layout = self.layout(encoded_schema(self.features, self.data.targets, defaultdict(lambda: 1)))
        if self.training.warm_start is not None:
            self.training.warm_start.check([table.name for table in layout.tables])
        with within("planning"):
            self.planning.check(layout.tables)
        if self.planning.beyond_memory is not None and self.training.weight_average is not None:
            raise ConfigError(
                "training.weight_average: reads every row at each step, but planning.beyond_memory stores rows on disk",
                "leave out one of the two",
            )
        if isinstance(self.parallel.embeddings, TowerTransformConfig):
            check_tower_transform(self.towers, layout, self.parallel, self.planning, self.embeddings, self.optimizer)
        cuda = self.training.device != "cpu"
        for feature, positions in layout.positions.items():
            with within(f"features.{feature}.pooling"):
                check_sequence_encoder(positions.encoder, positions.count, layout.table_of[feature].dim, cuda=cuda)
        model = self.model_settings(layout)
        with within("model"):
            numbers = check_model(model, model_dims(layout, self.tasks()), cuda=cuda)
            check_trainable(self.model, numbers, layout)
        with within("optimizer"):
            check_dense_optimizer(self.optimizer)
        with within("planning.planner"):
            check_planner(self.planning.planner)

    @pydantic.model_validator(mode="after")
    def _default_monitor(self) -> Self:
        """Sets the monitored metric, if it is not given, to one that all labels have."""
        tasks = self.tasks()
        if "monitor" not in self.training.model_fields_set and not all(task.is_probability for task in tasks):
            main = {task.main_metric for task in tasks}
            monitor = main.pop() if len(main) == 1 and len(tasks) == 1 else "relative_loss"
            object.__setattr__(self, "training", self.training.model_copy(update={"monitor": monitor}))
        return self

    def _check_several_codes(self) -> None:
        """Checks that values with several rows are looked up where these can be pooled."""
        for table in resolve_tables(self.features).values():
            if table.encoder.codes == 1:
                continue
            for feature in table.features:
                if isinstance(feature, SequenceFeature) and not isinstance(feature.pooling, str):
                    raise ConfigError(
                        f"features.{feature.name}.pooling: looks up one row a position, but encoder "
                        f"{table.encoder.title} gives a value up to {table.encoder.codes}",
                        "set pooling to sum or mean, or choose an encoder with one row a value, such as learned_hash",
                    )

    def _check_negative_rate(self) -> None:
        kinds = [label.kind for label in self.data.labels]
        if self.training.negative_rate is not None and isinstance(self.data.negatives, InBatchNegatives):
            raise ConfigError(
                "training.negative_rate: data.negatives makes the negatives of a batch, as many as per_positive says",
                "leave it out, and lower data.negatives.per_positive",
            )
        if self.training.negative_rate is not None and kinds != ["binary"]:
            raise ConfigError(
                f"training.negative_rate: needs a single binary label, there are labels of kind {', '.join(kinds)}",
                "leave it out: with several labels a row is rarely negative for all, and no correction is exact",
            )

    def _check_monitor(self) -> None:
        labels, monitor = [label.name for label in self.data.labels], self.training.monitor
        task, separator, metric = monitor.rpartition("/")
        if metric == "loss":
            raise ConfigError("training.monitor: 'loss' is measured on training batches only", "use log_loss")
        if separator and len(labels) == 1:
            raise ConfigError(f"training.monitor: {monitor!r} is not measured; use {metric}")
        if separator and task not in labels:
            close = nearest(task, labels)
            each = ", ".join(f"{label}/{metric}" for label in labels)
            hint = f"did you mean '{close}/{metric}'?" if close else f"use {each}, or {metric} for their mean"
            raise ConfigError(f"training.monitor: {monitor!r} is not measured; {hint}")
        for label in self.tasks():
            known = [*measured(label, grouped=True), "relative_loss"]
            if metric not in known and label.name in (task or label.name):
                raise ConfigError(
                    f"training.monitor: label {label.name!r} has no {metric}",
                    f"choose relative_loss, which all labels have, or one of {', '.join(known)}, with the label's name "
                    f"before it if there are several: {label.name}/{label.main_metric}",
                )
        if metric == "gauc" and self.data.group is None:
            raise ConfigError(
                "training.monitor: 'gauc' needs data.group", "name the column that holds the group, such as the user"
            )

    @property
    def width(self) -> int:
        """The embedding width D: the configured one, unless the model determines it."""
        return self.model.embedding_dim(self.embeddings.dim, tasks=sum(task.outputs for task in self.tasks()))

    def tasks(self, schema: Schema | None = None) -> tuple[Task, ...]:
        """Returns the labels as tasks of the model.

        Args:
            schema: the schema of the prepared data, which says the levels of ordinal labels; without it those that the
                config leaves open are empty.
        """
        levels = {} if schema is None else schema.levels
        kept = self.training.negative_rate or 1.0
        return tuple(label.task(levels.get(label.name, ()), kept) for label in self.data.labels)

    @property
    def starts_at_labels(self) -> bool:
        """Whether predictions begin at figures of the labels in the training rows."""
        return bool(self.training.start_at_base_rate) or any(label.kind != "binary" for label in self.data.labels)

    def layout(self, schema: Schema) -> Layout:
        """Returns the embedding tables and fields that the experiment's model needs for this schema.

        Raises:
            ConfigError: tables, groups or targets contradict the features.
        """
        poolings: dict[str, Pooling | Positions] = {}
        for feature in self.features:
            if isinstance(feature, SequenceFeature) and not isinstance(feature.pooling, str):
                poolings[feature.name] = Positions(feature.pooling, feature.last)
            elif isinstance(feature, BagFeature | SequenceFeature):
                assert isinstance(feature.pooling, str)
                poolings[feature.name] = feature.pooling
        tables = resolve_tables(self.features)
        for name in with_several_codes(inputs_of(self.features)):
            shared = [poolings.get(other.name) for other in tables[schema.tables[name]].features]
            poolings[name] = "mean" if "mean" in shared else "sum"
        numbers = (each for each in inputs_of(self.features) if isinstance(each, NumericFeature))
        ranked = {number.name for number in numbers if number.ranked}
        return lay_out(self.embeddings, schema, poolings, self.width, ranked)

    def model_settings(self, layout: Layout) -> ModelSettings:
        """Returns the config of the model for a layout; with modules of towers, of these and the model after them.

        Raises:
            ConfigError: the towers are none of the layout's features.
        """
        return self.model if self.towers is None else with_towers(self.model, self.towers, layout)

    def build_model(self, layout: Layout) -> Model:
        """Returns the model for a layout, with fresh weights from torch's global generator.

        Raises:
            ConfigError: the model cannot work with these sizes, or the towers are none of the layout's features.
        """
        return self.model_settings(layout).build_checked(model_dims(layout, self.tasks()))


def load_experiment(
    path: str | Path, overrides: str | Sequence[str] = (), data_folder: str | Path | None = None
) -> Experiment:
    """Reads an experiment from a YAML file.

    Args:
        path: the YAML file.
        overrides: one override ``a.b=c``, or several, as after ``--set``. Values are read as YAML; list items are
            addressed by position or name.
        data_folder: a folder that replaces ``data.folder``.

    Raises:
        ConfigError: there is no such file, it is not YAML, or keys or values are not allowed; all of them are named.
    """
    path = Path(path)
    values = _read_yaml(path)
    overridden = apply_overrides(values, [overrides] if isinstance(overrides, str) else overrides, data_folder)
    _check_plain(values, str(path))
    experiment = parse_config(Experiment, values, str(path), overridden)
    try:
        experiment.check()
    except ConfigError as error:
        key = f"{error.problem.partition(':')[0]}."
        from_override = any(key.startswith(f"{display_path(Experiment, values, override)}.") for override in overridden)
        source = "--set " if from_override else f"{path}: "
        raise ConfigError(f"{source}{error.problem}", error.hint) from None
    return experiment


def apply_overrides(
    values: dict[str, Any], overrides: Sequence[str], data_folder: str | Path | None = None
) -> set[Location]:
    """Sets the keys of a config that overrides name, as in :func:`load_experiment`; returns their locations.

    Raises:
        ConfigError: an override is not ``KEY=VALUE``, or its key cannot be.
    """
    overridden = {set_by_path(values, *key_and_value(override)) for override in overrides}
    if data_folder is not None:
        set_by_path(values, "data.folder", str(data_folder))
    return overridden


def as_experiment(experiment: Experiment | str | Path) -> Experiment:
    """Returns an experiment itself, or the one in a YAML file.

    Raises:
        ConfigError: as :func:`load_experiment`.
    """
    return experiment if isinstance(experiment, Experiment) else load_experiment(experiment)


def parse_experiment(text: bytes, path: Path) -> Experiment:
    """Returns the config in YAML that a run folder holds; its sections were checked when the run was started.

    Raises:
        ConfigError: it is not YAML, or not the config of an experiment.
    """
    values = parse_yaml(text, path, _NO_YAML)
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: expected sections such as data and features, received {shorten(values)}")
    _check_plain(values, str(path))
    return parse_config(Experiment, cast("dict[str, Any]", values), str(path))


def _has_one_id(feature: InputFeature) -> bool:
    return isinstance(feature, CategoricalFeature) or (isinstance(feature, NumericFeature) and feature.bucketised)


def to_yaml(experiment: Experiment) -> str:
    """Returns the config as YAML, with all defaults."""
    return _yaml_of(json.dumps(experiment.model_dump(mode="json")))


@functools.lru_cache(maxsize=32)
def _yaml_of(text: str) -> str:
    """Returns JSON as YAML; a training needs that of its config twice, and it takes a tenth of a second."""
    return as_yaml(json.loads(text))


def as_yaml(values: Mapping[str, Any]) -> str:
    """Returns plain values as YAML."""
    stream = io.StringIO()
    yaml = YAML()
    yaml.width = 120
    yaml.dump(values, stream)
    return stream.getvalue()


def json_schema() -> dict[str, Any]:
    """Returns the JSON Schema of an experiment, for editors and validators."""
    heading = {"$schema": GenerateJsonSchema.schema_dialect, "$id": "urn:ziggurat:experiment", "title": "Experiment"}
    return heading | Experiment.model_json_schema()


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        text = read_bytes(path, _UNREADABLE, limit=MAX_YAML_BYTES, follow=True)
    except FileNotFoundError:
        close = nearest(path.name, [item.name for item in path.parent.glob("*.y*ml")]) if path.parent.is_dir() else None
        hint = f"did you mean {path.parent / close}?" if close else f"write one with `ziggurat init FILES --out {path}`"
        raise ConfigError(f"{path}: no such config file", hint) from None
    values = parse_yaml(text, path, _NO_YAML)
    if values is None:
        raise ConfigError(
            f"{path}: {'the file is empty' if not text.strip() else 'holds no keys'}",
            f"if `ziggurat init … > {path}` made it, init failed and its message says why; then write it with "
            f"`ziggurat init FILES --out {path}`, which leaves no file when it fails",
        )
    if not isinstance(values, dict):
        raise ConfigError(
            f"{path}: expected sections such as data and features, received {shorten(values)}",
            "write one with `ziggurat init FILES --out exp.yaml`",
        )
    return cast("dict[str, Any]", values)


def _check_plain(value: Any, source: str, path: str = "") -> None:
    """Refuses what breaks the parts that a config is passed to: NUL characters, and keys that are no text.

    Raises:
        ConfigError: there is one; the message names its key.
    """
    if isinstance(value, str) and "\0" in value:
        raise ConfigError(f"{source}: {path}: received {shorten(value)}, which has a NUL character", "leave it out")
    if isinstance(value, dict):
        for key, each in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str) or "\0" in key:
                where = f"{path}: " if path else ""
                raise ConfigError(
                    f"{source}: {where}received the key {shorten(key)}", "keys are text; put it in quotes"
                )
            _check_plain(each, source, f"{path}.{key}" if path else key)
    if isinstance(value, list):
        for number, each in enumerate(cast("list[Any]", value)):
            _check_plain(each, source, f"{path}.{number}")


def differing_keys(left: Mapping[str, Any], right: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any, Any]]:
    """Returns (dotted key, left value, right value) for each key in which two resolved configs differ.

    For a section of another class only the name is returned, because its other keys have another meaning.
    """
    if prefix and left.get("name") != right.get("name"):
        return [(f"{prefix}name", left.get("name"), right.get("name"))]
    differences: list[tuple[str, Any, Any]] = []
    for key in dict.fromkeys((*left, *right)):
        path = f"{prefix}{key}"
        old, new = left.get(key), right.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            differences += differing_keys(cast("dict[str, Any]", old), cast("dict[str, Any]", new), f"{path}.")
        elif old != new:
            differences.append((path, old, new))
    return differences

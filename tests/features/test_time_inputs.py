"""Features from time: what they become, that they are fitted on training rows, and that prediction makes the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from feature_kit import block, experiment, write_csv
from hypothesis import given
from hypothesis import strategies as st

import ziggurat
from ziggurat.core.errors import ConfigError
from ziggurat.core.progress import Silent
from ziggurat.data.encoded.dataset import Dataset
from ziggurat.data.encoded.manifest import Split
from ziggurat.features.inputs.of_features import inputs_of
from ziggurat.features.preparation.prepare import prepare
from ziggurat.features.raw_blocks import open_raw
from ziggurat.features.raw_index import index_raw
from ziggurat.features.raw_schema import raw_schema
from ziggurat.features.time_inputs import TimeId, TimeNumber
from ziggurat.features.transform import Transform
from ziggurat.training.experiment import load_experiment, to_yaml
from ziggurat.training.prediction.files import predict_files

PARTS = ("hour", "weekday", "day", "month")
START = datetime(2024, 1, 1, tzinfo=UTC)


def time_feature(part: str, **settings: Any) -> dict[str, Any]:
    return {"name": part, "kind": "time", "column": "at", "part": part, "format": "iso", **settings}


def derived(part: str, seconds: list[float], **settings: Any) -> list[list[float]]:
    inputs = inputs_of(experiment([time_feature(part, **settings)]).features)
    values: list[list[float]] = []
    for each in inputs:
        assert isinstance(each, TimeNumber | TimeId)
        values.append(each.values(np.asarray(seconds, np.float64)).to_pylist())
    return values


@given(st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30)))
def test_parts_equal_those_of_the_standard_library(moment: datetime) -> None:
    seconds = float((moment - datetime(1970, 1, 1)) // timedelta(seconds=1))
    whole = moment.replace(microsecond=0)
    ids = {part: derived(part, [seconds], **{"as": "categorical"})[0][0] for part in PARTS}
    assert ids == {"hour": 1 + whole.hour, "weekday": 1 + whole.weekday(), "day": whole.day, "month": whole.month}
    share = {
        "hour": (whole.hour + whole.minute / 60 + whole.second / 3600) / 24,
        "weekday": whole.weekday() / 7,
        "day": (whole.day - 1) / 31,
        "month": (whole.month - 1) / 12,
    }
    for part in PARTS:
        sine, cosine = derived(part, [seconds])
        assert sine[0] == pytest.approx(np.sin(2 * np.pi * share[part]), abs=1e-9)
        assert cosine[0] == pytest.approx(np.cos(2 * np.pi * share[part]), abs=1e-9)


def test_a_missing_time_has_values_of_its_own() -> None:
    nothing = [float("nan")]
    for part in PARTS:
        assert derived(part, nothing, **{"as": "categorical"}) == [[0]]
        assert np.isnan(derived(part, nothing)).all()
    assert np.isnan(derived("age", nothing)).all()


def test_what_an_id_means_is_shown() -> None:
    (weekday,) = inputs_of(experiment([time_feature("weekday", **{"as": "categorical"})]).features)
    (hour,) = inputs_of(experiment([time_feature("hour", **{"as": "categorical"})]).features)
    assert isinstance(weekday, TimeId)
    assert isinstance(hour, TimeId)
    assert [weekday.describe(encoded) for encoded in (0, 1, 7)] == ["missing", "Monday", "Sunday"]
    assert [hour.describe(encoded) for encoded in (1, 24)] == ["0", "23"]


FEATURES = [
    {"name": "item", "kind": "categorical", "type": "integer"},
    *(time_feature(part, **{"as": "categorical"}, name=f"{part}_id") for part in PARTS),
    *(time_feature(part) for part in (*PARTS, "age")),
]


def log_experiment(folder: Path, rows: int = 400, **data: Any) -> Any:
    draw = np.random.default_rng(0)
    times = [(START + timedelta(hours=3 * k)).isoformat() for k in range(rows)]
    items, clicks = draw.integers(0, 20, rows).tolist(), draw.integers(0, 2, rows).tolist()
    write_csv(folder / "log.csv", {"item": items, "at": times, "click": clicks})
    split = {"name": "time", "validation": 0.25, "test": 0.25}
    return experiment(
        FEATURES,
        **{"time": "at", "time_format": "iso", "split": split, "block_rows": 64, "folder": str(folder), **data},
    )


def rows_of(folder: Path, split: Split) -> pa.Table:
    blocks = Dataset(folder).split(split)
    return pa.Table.from_batches([blocks.read(number) for number in range(len(blocks.sizes))])


def test_preparation_and_transform_make_the_same(tmp_path: Path) -> None:
    parsed = log_experiment(tmp_path)
    folder = prepare(parsed.data, parsed.features, tmp_path / "prepared")
    transform = Transform.load(folder / "encoders")
    training = rows_of(folder, "train")
    assert transform.features == parsed.features
    assert transform.schema.dense[-1] == "age"
    seconds = [START.timestamp() + 3 * 3600 * k for k in range(400)]
    rows = block(transform.raw_schema(), item=[1] * 400, at=seconds, click=[1.0] * 400)
    encoded = transform.apply(rows).batch.slice(0, training.num_rows)
    for name in encoded.schema.names:
        if name not in {"item", "label:click"}:
            assert encoded.column(name).equals(training.column(name).combine_chunks()), name
    unlabelled = transform.apply(block(transform.raw_schema(labelled=False), item=[1], at=[None]), labelled=False)
    assert unlabelled.batch.select(["hour_id", "hour_sin", "hour_cos", "age"]).to_pylist() == [
        {"hour_id": 0, "hour_sin": 0.0, "hour_cos": 0.0, "age": 0.0}
    ]


def test_the_age_is_fitted_on_training_rows_alone(tmp_path: Path) -> None:
    parsed = log_experiment(tmp_path)
    folder = prepare(parsed.data, parsed.features, tmp_path / "prepared")
    days = np.arange(200) / 8  # since the first training row
    expected = (days - days.mean()) / days.std()
    training = rows_of(folder, "train").column("age").to_numpy()
    np.testing.assert_allclose(training, expected, rtol=1e-5)
    later = rows_of(folder, "test").column("age").to_numpy()
    np.testing.assert_allclose(later, expected.max(), rtol=1e-5)  # later rows count as the newest ones


def test_raw_blocks_equal_prepared_ones(tmp_path: Path) -> None:
    parsed = log_experiment(tmp_path)
    folder = prepare(parsed.data, parsed.features, tmp_path / "prepared")
    index_raw(parsed.data, parsed.features, tmp_path / "index", Silent())
    raw = open_raw(parsed.data, parsed.features, folder / "encoders", tmp_path / "index")
    read = pa.Table.from_batches([raw.splits["train"].read(k) for k in range(len(raw.splits["train"].sizes))])
    prepared = rows_of(folder, "train")
    assert read.select(prepared.schema.names).to_pydict() == prepared.to_pydict()


EXPERIMENT = """\
name: clicks
data:
  folder: .
  source: {name: csv, files: [log.csv]}
  split: {name: time, validation: 0.1, test: 0.1}
  labels: [{name: click}]
  time: at
  time_format: "%d.%m.%Y %H:%M"
features:
  - {name: item, kind: categorical, type: integer}
  - {name: hour, kind: time, column: at, part: hour}
  - {name: weekday, kind: time, column: at, part: weekday, as: categorical}
  - {name: age, kind: time, column: at, part: age}
embeddings: {dim: 4, optimizer: {name: rowwise_adagrad, lr: 0.1}}
model: {name: deepfm}
training: {batch_size: 256, epochs: 5, threads: 1}
evaluation: {slices: [weekday]}
"""


def test_a_model_learns_the_hour_and_predicts_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    times = [START + timedelta(minutes=17 * k) for k in range(6_000)]
    clicks = [int(draw.random() < (0.9 if 6 <= time.hour < 18 else 0.1)) for time in times]
    written = [time.strftime("%d.%m.%Y %H:%M") for time in times]
    write_csv(Path("log.csv"), {"item": draw.integers(0, 9, 6_000).tolist(), "at": written, "click": clicks})
    Path("exp.yaml").write_text(EXPERIMENT)
    loaded = load_experiment("exp.yaml")
    assert [getattr(feature, "format", None) for feature in loaded.features] == [None, *["%d.%m.%Y %H:%M"] * 3]
    Path("again.yaml").write_text(to_yaml(loaded))
    assert load_experiment("again.yaml") == loaded
    finished = ziggurat.train(loaded, "run")
    assert finished.results is not None
    assert finished.results["figures"]["test"]["auc"] > 0.85
    asked = {"item": [1, 1, 1], "at": ["05.03.2024 12:00", "05.03.2024 00:00", None]}
    write_csv(Path("new.csv"), asked)
    predict_files("run", "new.csv", "scored.csv")
    scored = [float(line.rsplit(",", 1)[1]) for line in Path("scored.csv").read_text().splitlines()[1:]]
    np.testing.assert_allclose(ziggurat.predict("run", asked)[:, 0], scored, rtol=1e-5)
    noon, night, unknown = scored
    assert noon > 0.7
    assert night < 0.3
    assert night < unknown < noon


@pytest.mark.parametrize(
    ("feature", "data", "message"),
    [
        ("part: hour", "time_format: number", "feature 'x': the format `number` does not say what the numbers count"),
        ("part: hour, format: number", "time_format: iso", "the format `number` does not say"),
        ("part: hour, format: '%Y-%m-%d'", "time_format: iso", "has no hours; every row would be at midnight"),
        ("part: hour", "time_format: '%Y%m%d'", "feature 'x': part: the format '%Y%m%d' has no hours|has no hours"),
        ("part: age, as: cyclical", "time_format: iso", "the age is one standardised number: leave `as` out"),
        ("part: minute", "time_format: iso", "part"),
        ("part: hour, as: text", "time_format: iso", "as"),
        ("part: hour, encoding: cyclical", "time_format: iso", "encoding: unknown key.*as"),
        ("part: hour, encoder: {name: hash, rows: 9}", "time_format: iso", "encoder: a time feature takes none; `as:"),
        ("part: hour, transforms: [{name: log}]", "time_format: iso", "transforms: a time feature takes none"),
        ("part: hour, column: seen", "time_format: iso", "say how the times of column 'seen' are written"),
        ("part: hour, format: 'daily'", "time_format: iso", "received 'daily'; allowed: number, iso, seconds"),
    ],
)
def test_nonsense_is_refused_by_name(tmp_path: Path, feature: str, data: str, message: str) -> None:
    column = "" if "column" in feature else "column: at, "
    text = EXPERIMENT.replace('time_format: "%d.%m.%Y %H:%M"', data)
    lines = [line for line in text.splitlines() if "kind: time" not in line and "slices" not in line]
    lines.insert(lines.index("features:") + 1, f"  - {{name: x, kind: time, {column}{feature}}}")
    (tmp_path / "exp.yaml").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match=message):
        load_experiment(tmp_path / "exp.yaml").check()


def test_two_features_of_one_name_are_refused(tmp_path: Path) -> None:
    clash = EXPERIMENT.replace("{name: item, kind", "{name: hour_sin, column: item, kind")
    (tmp_path / "exp.yaml").write_text(clash)
    with pytest.raises(ConfigError, match="the name 'hour_sin' is used twice"):
        load_experiment(tmp_path / "exp.yaml")


def test_a_column_is_read_in_one_format() -> None:
    parsed = experiment([time_feature("hour", format="%d/%m/%Y %H")], time="at", time_format="iso")
    with pytest.raises(ConfigError, match=r"reads its times as .%d/%m/%Y %H., data\.time as .iso."):
        raw_schema(parsed.data, parsed.features)

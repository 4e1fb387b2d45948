"""``ziggurat init`` end to end: its output parses as an experiment, gives reasons, and trains without changes."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import polars as pl
import pytest
import typer.testing

from ziggurat.cli.drafts.text import feature_name, scalar
from ziggurat.cli.init import experiment_name
from ziggurat.cli.main import app
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.synthetic.config import GeneratorConfig
from ziggurat.data.synthetic.generate import generate
from ziggurat.data.synthetic.shapes import SHAPES
from ziggurat.models.build import ModelConfig
from ziggurat.training.api import load_experiment, predict, predict_files, train
from ziggurat.training.experiment import Experiment

RUNNER = typer.testing.CliRunner()


def init(*arguments: str | Path) -> str:
    """Returns standard output; raises errors."""
    result = RUNNER.invoke(app, ["init", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def parsed(folder: Path, *arguments: str | Path) -> Experiment:
    path = folder / "exp.yaml"
    path.write_text(init(*arguments))
    return load_experiment(path)


def generated(path: Path, shape: str, rows: int = 4_000, **changes: object) -> Path:
    config = SHAPES[shape](rows, 1).model_dump() | {"format": path.suffix[1:]} | changes
    generate(GeneratorConfig.model_validate(config), path)
    return path


GOLDEN = """\
# Inferred from the data by `ziggurat init`, with reasons. It can be trained as it is; review it first.
name: shop
data:
  folder: logs  # relative to the working directory; --data FOLDER replaces it
  source:  # 60 rows, all examined
    name: csv
    files: [shop.csv]
    delimiter: ";"
    header: true
    null_values: ["", "NA"]  # texts that mean missing
  split: {name: time_within_key, key: user id, validation: 0.1, test: 0.1}  # \
each group's last rows test, those before them validate: no look ahead
  on_bad_row: fail  # or quarantine: set the row aside in quarantine.jsonl, with the reason
  labels:
    - {name: bought, equals: "yes"}  # its name, and it holds two values: 'no' and 'yes'
  weight: null
  group: user id  # for GAUC: the ranking within each user id
  time: ts
  time_format: seconds  # seconds since 1970: by its name and range
features:  # leave out what is known only after the label: it would leak
  - {name: user id, kind: categorical, type: integer, encoder: {name: vocabulary, min_count: 1}}  # \
4 different values, ids by its name
  # - {name: ts, kind: numeric}  # left out: the time of the row: it splits rows; as an input it would not repeat
  - {name: item_price, kind: numeric, column: item.price, transforms: [{name: bucketise, bins: 20}]}  # a quantity by \
its name, 0 … 39; 33% missing
  - {name: tags, kind: bag, delimiter: "|", encoder: {name: vocabulary, min_count: 1}}  # \
5 different values, up to 2 a row
  # - {name: shop, kind: categorical}  # left out: always the same: nothing to learn from
embeddings:
  dim: 16
  # eps: a tenth of a positive row's gradient, so that the small gradients of many negatives stay small
  optimizer: {name: rowwise_adagrad, lr: 0.02, eps: 1e-2}
model: {name: deepfm}  # fewer than 50,000 training rows; or wukong, dhen, dcn_v2, dlrm, \
finalmlp, masknet, autoint, xdeepfm, wide_deep, dnn, fm, \
logistic_regression: docs/models.md
optimizer: {name: adam, lr: 0.001}  # for everything except the embedding tables
training:
  batch_size: 8
  epochs: 30  # at most: it stops early
  early_stopping: {patience: 3}  # evaluations without a better validation log-loss
  weight_average: 0.99  # the mean of the last 100 steps' weights is evaluated and used
  start_at_base_rate: true  # the first prediction is the share of positives, not 1/2
evaluation: {slices: []}  # categorical features for whose values metrics are reported separately
"""


def test_golden_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ["user id;ts;bought;item.price;tags;shop"]
    for k in range(60):
        price = "NA" if k % 3 == 0 else str(k * 7 % 40)
        tags = "|".join(sorted({"abcde"[k % 5], "abcde"[k // 5 % 5]}))
        lines.append(f"{k % 4};{1_600_000_000 + k};{'yes' if k % 5 == 0 else 'no'};{price};{tags};main")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/shop.csv").write_text("\n".join(lines) + "\n")
    monkeypatch.chdir(tmp_path)
    assert init("logs/shop.csv") == GOLDEN
    assert parsed(tmp_path, "logs/shop.csv").features[1].source_column == "item.price"


@pytest.mark.parametrize("kind", ["csv", "parquet", "jsonl"])
def test_the_generated_shop_log_is_understood_in_every_format(kind: str, tmp_path: Path) -> None:
    experiment = parsed(tmp_path, generated(tmp_path / f"log.{kind}", "demo"))
    assert experiment.data.source.name == kind
    assert [label.name for label in experiment.data.labels] == ["click", "buy"]
    assert (experiment.data.time, experiment.data.group) == ("timestamp", "user_id")
    features = {feature.name: feature for feature in experiment.features}
    assert {name: feature.kind for name, feature in features.items()} == {
        "age": "numeric", "price": "numeric", "seconds_since_visit": "numeric", "user_id": "categorical",
        "item_id": "categorical", "category": "categorical", "device": "categorical", "hour": "categorical",
        "tags": "bag", "last_items": "sequence",
    }  # fmt: skip
    assert features["last_items"].table == "item_id"  # pyright: ignore


def test_the_criteo_layout_is_recognised(tmp_path: Path) -> None:
    for part in ("train", "dev", "test"):
        generated(tmp_path / f"criteo_{part}.csv", "criteo", delimiter="\t")
    experiment = parsed(tmp_path, tmp_path)
    source, split = experiment.data.source, experiment.data.split
    assert (source.name, source.files) == ("csv", ["criteo_train.csv"])
    assert split.name == "files"
    assert (split.validation, split.test) == (("criteo_dev.csv",), ("criteo_test.csv",))  # pyright: ignore
    assert experiment.name == "criteo"
    names = [feature.name for feature in experiment.features]
    assert names == [*(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27))]
    assert all(feature.kind == "categorical" for feature in experiment.features[13:])


def test_libfm_fields_become_features(tmp_path: Path) -> None:
    rows = "".join(f"{k % 2} {k % 7}:1 {10 + k % 5}:1\n" for k in range(200))
    (tmp_path / "log.libfm").write_text(rows)
    experiment = parsed(tmp_path, tmp_path / "log.libfm")
    assert experiment.data.source.name == "libsvm"
    assert [feature.name for feature in experiment.features] == ["field_1", "field_2"]


def test_iso_times_and_texts_as_labels_are_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (
        f"{k % 6},19{50 + k % 40}-02-03,2024-05-{1 + k // 24:02d} {k % 24:02d}:30,{'click' if k % 3 else 'no_click'}\n"
        for k in range(240)
    )
    (tmp_path / "log.csv").write_text("user,birth_date,shown,outcome\n" + "".join(rows))
    text = init("log.csv")
    assert "  time: shown\n  time_format: iso  # text such as 2024-05-01 00:30; UTC where no zone is written\n" in text
    experiment = parsed(tmp_path, "log.csv")
    assert (experiment.data.time, experiment.data.time_format) == ("shown", "iso")
    assert experiment.data.split.name == "time_within_key"
    assert [label.equals for label in experiment.data.labels] == ["click"]
    assert train(load_experiment("exp.yaml", ["training.epochs=1"]), "run").results is not None


def test_libsvm_numbers_are_proposed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = (
        f"{k % 2} 1:{k * 7 % 11 / 8} " + (f"5:{k % 13}.5 " if k % 3 else "") + f"{k % 30 + 50}:1\n" for k in range(200)
    )
    (tmp_path / "log.svm").write_text("".join(rows))
    assert "    numeric: [1, 5]  # indices with values other than 1\n    absent: zero  # " in init("log.svm")
    experiment = parsed(tmp_path, "log.svm")
    assert [(feature.name, feature.kind) for feature in experiment.features] == [
        ("1", "numeric"), ("5", "numeric"), ("ids", "bag"),
    ]  # fmt: skip
    assert train(load_experiment("exp.yaml", ["training.epochs=1"]), "run").results is not None


def test_lists_in_brackets_train_and_predict_as_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    lists = [[draw.randrange(200) for _ in range(draw.randrange(5))] for _ in range(2_000)]
    frame = pl.DataFrame({"user": [k % 40 for k in range(2_000)], "item": [k * 7 % 200 for k in range(2_000)]})
    frame = frame.with_columns(label=pl.Series(draw.random() < 0.4 for _ in range(2_000)).cast(pl.Int8))
    frame.with_columns(hist=pl.Series(map(str, lists))).write_csv("log.csv")
    text = init("log.csv")
    assert '{name: hist, kind: sequence, type: integer, delimiter: ",", brackets: true, last: 4, table: item}' in text
    pooling = "{name: target_attention, target: item}"
    assert f"\n  #   to attend to it from item, add: pooling: {pooling}\n" in text
    Path("exp.yaml").write_text(text)
    run = train(load_experiment("exp.yaml", ["training.epochs=1", f"features.hist.pooling={pooling}"]), "run").run
    predict_files(run, ["log.csv"], Path("out.parquet"))
    rows = frame.drop("label").with_columns(hist=pl.Series(lists, dtype=pl.List(pl.Int64)))
    scored = pl.read_parquet("out.parquet")
    assert scored["hist"].to_list() == lists
    np.testing.assert_allclose(scored["probability"].to_numpy(), predict(run, rows)[:, 0], atol=1e-6)
    rows.write_ndjson("log.jsonl")
    predict_files(run, ["log.jsonl"], Path("again.csv"))
    pl.read_csv("again.csv").drop("probability").write_csv("again.csv")
    predict_files(run, ["again.csv"], Path("again.parquet"))
    assert pl.read_parquet("again.parquet")["hist"].to_list() == lists


def test_every_model_is_named() -> None:
    chosen, _, others = GOLDEN.partition("model: {name: ")[2].partition(": docs")[0].partition("}")
    named = [chosen, *re.findall(r"\w+", others.partition("; or ")[2])]
    assert sorted(named) == sorted(kind().name for kind in get_args(get_args(ModelConfig)[0]))


@pytest.mark.parametrize("log", ["demo.csv", "demo.parquet", "criteo.csv"])
def test_the_config_trains_without_changes(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    generated(tmp_path / log, log.partition(".")[0], rows=1_500)
    (tmp_path / "exp.yaml").write_text(init(log))
    outcome = train(load_experiment("exp.yaml", ["training.epochs=1"]), "run")
    assert outcome.results is not None
    assert outcome.step > 0


@pytest.mark.parametrize(("rows", "batch"), [(2, 1), (8, 1), (250, 32), (1_300, 256), (3_000, 256)])
def test_a_batch_is_at_most_a_quarter_of_the_training_rows(rows: int, batch: int, tmp_path: Path) -> None:
    lines = (f"{k % 2},{k % 5 + 0.5}\n" for k in range(rows))
    (tmp_path / "log.csv").write_text("label,x\n" + "".join(lines))
    assert parsed(tmp_path, tmp_path / "log.csv").training.batch_size == batch


def test_an_existing_output_file_is_kept_unless_forced(tmp_path: Path) -> None:
    log = generated(tmp_path / "log.csv", "demo", rows=500)
    out = tmp_path / "exp.yaml"
    assert init(log, "-o", out, "--name", "mine", "--schema", "schema.json") == ""
    text = out.read_text()
    assert text.startswith("# yaml-language-server: $schema=schema.json\n# Inferred")
    assert load_experiment(out).name == "mine"
    with pytest.raises(ConfigError, match="exists"):
        init(log, "-o", out)
    assert out.read_text() == text
    init(log, "-o", out, "--force", "--label", "age")
    assert [label.name for label in load_experiment(out).data.labels] == ["age"]


def test_unusual_column_names_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = ["label", "no", "a.b", "@x", "größe", "two words", "co:lon", "# hash", 'q"uote', "- dash", "1.5"]
    frame = pl.DataFrame(
        {name: [f"v{k * (1 + number % 4) % 5}" for k in range(400)] for number, name in enumerate(names)}
    )
    frame.with_columns(label=pl.int_range(400) % 2).write_parquet("odd.parquet")
    experiment = parsed(tmp_path, "odd.parquet")
    assert [feature.source_column for feature in experiment.features] == names[1:]
    assert train(load_experiment("exp.yaml", ["training.epochs=1"]), "run").results is not None


def test_mistakes_are_explained(tmp_path: Path) -> None:
    (tmp_path / "ratings.csv").write_text("user,rating\n1,4\n")
    (tmp_path / "empty.csv").touch()
    with pytest.raises(DataError, match=r"no such file[\s\S]*did you mean .*ratings.csv"):
        init(tmp_path / "rating.csv")
    with pytest.raises(DataError, match="the file is empty"):
        init(tmp_path / "empty.csv")
    run = subprocess.run(
        [sys.executable, "-c", "from ziggurat.cli.main import main; main()", "init", str(tmp_path / "ratings.csv")],
        capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"},
    )  # fmt: skip
    assert run.returncode == 1
    assert "no column looks like a label" in run.stderr
    assert "--label COLUMN; columns: user, rating" in run.stderr


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("user_id", "user_id"),
        ("two words", "two words"),
        ("no", '"no"'),
        ("1.5", '"1.5"'),
        ("a: b", '"a: b"'),
        ("", '""'),
    ],
)
def test_yaml_strings(text: str, written: str) -> None:
    assert scalar(text) == written


def test_names(tmp_path: Path) -> None:
    assert feature_name("a.b/c") == "a_b_c"
    assert feature_name("@x") == "x"
    assert feature_name("a\u202eb\u200bc\t\nd") == "a_b_c_d"
    assert experiment_name(Path("/data/Click Log/train.csv")) == "click-log"
    assert experiment_name(Path("/data/x/criteo_train.csv.gz")) == "criteo"
    assert experiment_name(tmp_path / "ratings.csv") == "ratings"

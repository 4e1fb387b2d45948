"""`init` understands the kinds of logs that people bring; `prepare` accepts what it writes and loses no row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kinds_of_logs as kinds
import numpy as np
import pytest
from ruamel.yaml import YAML

import ziggurat
from ziggurat.data.encoded.manifest import SPLITS


@dataclass(frozen=True)
class Understood:
    """What `init` made of a log.

    Attributes:
        text: the YAML with its comments.
        values: the same, parsed.
        dataset: the prepared dataset.
    """

    text: str
    values: dict[str, Any]
    dataset: ziggurat.Dataset

    @property
    def data(self) -> dict[str, Any]:
        return self.values["data"]

    @property
    def source(self) -> dict[str, Any]:
        return self.data["source"]

    @property
    def label(self) -> dict[str, Any]:
        return self.data["labels"][0]

    def of_column(self, column: str) -> list[dict[str, Any]]:
        """Returns the features that are made of a column."""
        return [each for each in self.values["features"] if each.get("column", each["name"]) == column]

    def kind(self, column: str) -> str:
        """Returns the kind of the only feature of a column."""
        (feature,) = self.of_column(column)
        return feature["kind"]


def understand(folder: Path, files: Path, label: str | None = None, rows: int = kinds.ROWS) -> Understood:
    """Writes the config of a log, prepares it, and checks that no row was lost."""
    text = ziggurat.draft_config(files, label)
    (folder / "exp.yaml").write_text(text, encoding="utf-8")
    dataset = ziggurat.prepare(ziggurat.load_experiment(folder / "exp.yaml"), folder / "prepared")
    kept = sum(dataset.split(split).rows for split in SPLITS)
    assert kept + dataset.quarantined_rows == rows
    return Understood(text, YAML(typ="safe").load(text), dataset)


def test_an_hour_in_digits_is_a_time(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.hour_as_digits(tmp_path))
    assert (found.data["time"], found.data["time_format"]) == ("hour", "%y%m%d%H")
    assert found.data["split"]["name"].startswith("time")
    assert all(feature["kind"] == "time" for feature in found.of_column("hour"))
    assert "part: hour" in found.text


def test_a_rate_is_a_soft_label(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.soft_label(tmp_path), "ctr")
    assert found.label["kind"] == "soft"


def test_a_quantity_is_a_regression_label(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.watch_time(tmp_path), "watch_seconds")
    assert found.label["kind"] == "regression"
    assert "tweedie" in found.text  # most amounts are 0


def test_ids_written_as_floats_are_integers(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.float_ids(tmp_path))
    for column in ("user_id", "item_id"):
        (feature,) = found.of_column(column)
        assert (feature["kind"], feature["type"]) == ("categorical", "integer")
    assert found.data["group"] == "user_id"


def test_a_decimal_comma_is_read(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.decimal_comma(tmp_path))
    assert (found.source["decimal"], found.kind("price")) == (",", "numeric")


def test_utf16_is_read(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.utf16(tmp_path))
    assert found.source["encoding"].startswith("utf-16")
    assert {feature["name"] for feature in found.values["features"]} == {"user", "item"}


def test_dates_with_the_day_first_are_a_time(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.day_first(tmp_path))
    assert (found.data["time"], found.data["time_format"]) == ("date", "%d/%m/%Y %H:%M")


def test_positives_alone_are_offered_sampled_negatives(tmp_path: Path) -> None:
    with pytest.raises(ziggurat.ConfigError) as caught:
        ziggurat.draft_config(kinds.positives_alone(tmp_path))
    assert "negatives" in str(caught.value)
    assert "observed: true" in str(caught.value)


def test_a_count_may_be_a_label(tmp_path: Path) -> None:
    files = kinds.play_counts(tmp_path)
    assert understand(tmp_path, files, "plays").label["kind"] == "regression"
    try:
        offered = ziggurat.draft_config(files)
    except ziggurat.ConfigError as error:
        offered = str(error)
    assert "plays" in offered
    assert "negatives" in offered


def test_nested_columns_are_columns_and_what_is_left_out_is_named(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.nested_parquet(tmp_path))
    assert found.kind("geo.lat") == "numeric"
    assert found.kind("price") == "numeric"
    assert found.kind("basket.id") == "bag"
    assert found.data["time"] == "ts"
    for left_out in ("nothing", "geo.lon"):
        assert left_out in found.text


def test_folders_called_key_value_are_a_column(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.key_value_folders(tmp_path))
    assert found.data["time"] == "dt"


@pytest.mark.parametrize("draw", [kinds.zip_archive, kinds.bzip2, kinds.arrow_file])
def test_archives_and_arrow_files_are_read(tmp_path: Path, draw: Callable[[Path], Path]) -> None:
    found = understand(tmp_path, draw(tmp_path))
    assert (found.label["name"], found.kind("item")) == ("click", "categorical")


def test_avro_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ziggurat.DataError, match="Avro"):
        ziggurat.draft_config(kinds.avro_file(tmp_path))


def test_objects_in_json_lines_are_columns(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.nested_json_lines(tmp_path))
    assert found.kind("user.id") == "categorical"
    assert "user.age" in found.text


@pytest.mark.parametrize(("name", "separator"), [("u.data", "\t"), ("ratings.dat", "::")])
def test_ratings_without_a_header_are_recognised(tmp_path: Path, name: str, separator: str) -> None:
    found = understand(tmp_path, kinds.ratings(tmp_path, name, separator))
    assert found.source["delimiter"] == separator
    assert found.label["name"] == "rating"
    assert found.data["time"] == "timestamp"


def test_money_and_per_cent_are_numbers(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.money(tmp_path))
    assert (found.kind("spend"), found.kind("discount")) == ("numeric", "numeric")
    assert found.source["thousands"] == ","


def test_an_event_is_a_label(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.event_column(tmp_path))
    assert (found.label.get("column", found.label["name"]), found.label["equals"]) == ("action", "click")
    assert found.data["time"] == "time"


def test_criteos_layout_is_recognised_whole(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.criteo_layout(tmp_path))
    assert found.source["columns"] == ["label", *(f"I{k}" for k in range(1, 14)), *(f"C{k}" for k in range(1, 27))]
    assert {found.kind(f"I{k}") for k in range(1, 14)} == {"numeric"}
    assert {found.kind(f"C{k}") for k in range(1, 27)} == {"categorical"}


def test_large_whole_numbers_are_ids(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.large_ids(tmp_path), rows=20_000)
    assert {found.kind(column) for column in ("network", "slot", "url_hash")} == {"categorical"}
    assert (found.data["time"], found.data["time_format"]) == ("at", "%m/%d/%Y %H:%M")
    assert (found.label["name"], found.data["split"]["name"]) == ("installed", "time")


def test_many_columns_are_features(tmp_path: Path) -> None:
    found = understand(tmp_path, kinds.wide(tmp_path), rows=200)
    assert len(found.dataset.schema.dense) == 400


def test_rare_positives_keep_the_base_rate(tmp_path: Path) -> None:
    draw, rows = np.random.default_rng(3), 30_000
    users, items, pull = draw.integers(0, 900, rows), draw.integers(0, 200, rows), draw.normal(size=200)
    bought = draw.random(rows) < 1 / (1 + np.exp(6.0 - 1.5 * pull[items]))
    lines = [f"{user},{item},{int(each)}" for user, item, each in zip(users, items, bought, strict=True)]
    (tmp_path / "rare.csv").write_text("user,item,conv\n" + "\n".join(lines) + "\n")
    (tmp_path / "exp.yaml").write_text(ziggurat.draft_config(tmp_path / "rare.csv"))
    outcome = ziggurat.train(tmp_path / "exp.yaml", tmp_path / "run", prepared=tmp_path / "prepared")
    assert outcome.results is not None
    figures = outcome.results["figures"]["test"]
    assert 0.5 < figures["calibration"] < 2.0
    assert figures["auc"] > 0.6

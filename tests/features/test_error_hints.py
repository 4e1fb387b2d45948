"""ISO times that split rows, and hints for text in place of a label or a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from feature_kit import Experiment, experiment, write_csv

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.schema import TIME_COLUMN, ValueType
from ziggurat.data.encoded.dataset import SPLITS, Dataset
from ziggurat.features.preparation.prepare import prepare
from ziggurat.features.raw_schema import raw_schema

FEATURES: list[dict[str, Any]] = [{"name": "x", "kind": "numeric"}]
ISO: dict[str, Any] = {"time": "at", "time_format": "iso"}


def run(folder: Path, parsed: Experiment) -> Path:
    return prepare(parsed.data, parsed.features, folder / "prepared")


def test_iso_times_split_rows_across_time_zones(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    hours = random.permutation(200)
    zones = [("Z", 0), ("", 0), ("+05:00", 5), ("-03", -3)]
    cells: list[str] = []
    for row, hour in enumerate(hours):
        zone, east = zones[row % 4]
        day, local = divmod(int(hour) + east + 24, 24)
        cells.append(f"2024-05-{day + 1:02d}T{local:02d}:00{zone}")
    write_csv(tmp_path / "log.csv", {"x": hours.tolist(), "at": cells, "click": [0, 1] * 100})
    folder = run(tmp_path, experiment(FEATURES, folder=str(tmp_path), split={"name": "time"}, **ISO))
    times = [
        [t for block in range(len(blocks.blocks)) for t in blocks.read(block).column(TIME_COLUMN).to_pylist()]
        for blocks in (Dataset(folder).split(name) for name in SPLITS)
    ]
    first = 1_714_521_600 + 24 * 3600
    expected = [first + 3600.0 * hour for hour in range(200)]
    assert [sorted(part) for part in times] == [expected[:160], expected[160:180], expected[180:]]


@pytest.mark.parametrize(
    ("columns", "settings", "message"),
    [
        (
            {"click": ["no", "yes"]},
            {},
            "log.csv, line 2, column 'click': not a number: received 'no'\n"
            "  hint: set `equals: \"yes\"` on label 'click', whose column contains text",
        ),
        ({"click": ["No_Click", "Click"]}, {}, "received 'No_Click'\n  hint: set `equals: \"Click\"` on label 'click'"),
        ({"click": ["Y", "N"]}, {}, "received 'Y'\n  hint: set `equals: \"Y\"` on label 'click'"),
        ({"click": ["FALSE", "TRUE"]}, {}, "received 'FALSE'\n  hint: set `equals: \"TRUE\"` on label 'click'"),
        ({"click": ["red", "blue"]}, {}, "received 'red'\n  hint: set `equals: its positive text` on label 'click'"),
        (
            {"click": [0, 1], "at": ["2024-05-01", "2024-05-02"]},
            {"time": "at"},
            "column 'at': not a number: received '2024-05-01'\n  hint: set `data.time_format: iso` if",
        ),
        (
            {"click": [0, 1], "at": ["2024-05-01", "later"]},
            ISO,
            "line 3, column 'at': not a time: received 'later'\n  hint: write it like 2024-05-01",
        ),
        ({"click": [0, 1], "at": [1, 2]}, ISO, "not a time: received '1'\n  hint: .* set `time_format: number`"),
    ],
)
def test_text_in_place_of_numbers_has_a_hint(
    tmp_path: Path, columns: dict[str, list[Any]], settings: dict[str, Any], message: str
) -> None:
    write_csv(tmp_path / "log.csv", {"x": [1, 2], **columns})
    with pytest.raises(DataError, match=message):
        run(tmp_path, experiment(FEATURES, folder=str(tmp_path), **settings))


def test_a_column_of_iso_times_cannot_be_an_id_as_well() -> None:
    parsed = experiment(FEATURES, **ISO)
    assert raw_schema(parsed.data, parsed.features)["at"].type is ValueType.TIME
    assert parsed.data.targets.time_format == "iso"
    parsed = experiment([{"name": "at", "kind": "categorical"}], **ISO)
    with pytest.raises(ConfigError, match=r"column 'at'.*as time.*as text|column 'at'.*as text.*as time"):
        raw_schema(parsed.data, parsed.features)

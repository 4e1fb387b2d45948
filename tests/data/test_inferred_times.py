"""Which columns are times, and how they are written: found from values, of which some writings are ambiguous."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from ziggurat.cli.init import draft_config
from ziggurat.data.inference.columns import ColumnProfile, profile_column
from ziggurat.data.inference.roles import Inference, find_time, infer
from ziggurat.data.inference.times import parts_that_vary
from ziggurat.data.readers.source_files import resolve_files
from ziggurat.training.api import prepare
from ziggurat.training.experiment import load_experiment
from ziggurat.training.train import train

HOURS = [datetime(2024, 1, 1) + timedelta(minutes=17 * k) for k in range(4_000)]  # 48 days


def profile(name: str, values: list[str] | list[int] | list[float]) -> ColumnProfile:
    return profile_column(pl.Series(name, values), complete=True)


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("%Y-%m-%dT%H:%M:%SZ", "iso"),
        ("%Y-%m-%d", "iso"),
        ("%d/%m/%Y %H:%M", None),
        ("%m/%d/%Y %H:%M", None),
        ("%m/%d/%Y %I:%M %p", None),
        ("%d.%m.%Y", None),
        ("%d.%m.%Y %H:%M:%S,%f", None),
        ("%d-%m-%y", None),
        ("%y-%m-%d", None),
        ("%Y/%m/%d %H:%M:%S", None),
        ("%b %d, %Y", None),
        ("%d %B %Y, %H:%M", "%d %b %Y, %H:%M"),
        ("%a %b %d %H:%M:%S +0000 %Y", "%a %b %d %H:%M:%S %z %Y"),
        ("[%d/%b/%Y:%H:%M:%S +0200]", "[%d/%b/%Y:%H:%M:%S %z]"),
        ("%Y%m%d %H:%M", None),
        ("%Y%m%d", None),
        ("%y%m%d%H", None),
        ("%Y%m%d%H%M%S", None),
        ("%m/%Y", None),
    ],
)
@pytest.mark.parametrize("name", ["ts", "x"])
def test_the_writing_is_found_whatever_the_name(written: str, found: str | None, name: str) -> None:
    guess = profile(name, [time.strftime(written) for time in HOURS])
    assert guess.time_format == (found or written)
    assert guess.time_note


@pytest.mark.parametrize("unit", [1, 10**3, 10**6, 10**9])
def test_the_unit_of_numbers_is_found(unit: int) -> None:
    names = {1: "seconds", 10**3: "milliseconds", 10**6: "microseconds", 10**9: "nanoseconds"}
    values = [int(time.timestamp()) * unit for time in HOURS]
    assert profile("time", values).time_format == names[unit]
    assert profile("x", values).time_format == names[unit]  # they grow with the rows
    random.Random(0).shuffle(values)
    assert profile("time", values).time_format == names[unit]
    assert profile("x", values).time_format is None


def test_where_no_value_decides_the_neighbours_do() -> None:
    first_days = [time for time in HOURS if time.day <= 12]
    for written, other in (("%d/%m/%Y", "%m/%d/%Y"), ("%m/%d/%Y", "%d/%m/%Y")):
        found = profile("date", [time.strftime(written) for time in first_days])
        assert found.time_format == written
        assert found.time_note.endswith(
            f"; {other} would read every value too, but then neighbouring rows would lie further apart: check this"
        )


def test_where_nothing_decides_that_is_said() -> None:
    same = ["01/01/2024", "02/02/2024", "03/03/2024"] * 50
    found = profile("date", same)
    assert found.time_format == "%m/%d/%Y"  # with slashes, month first is the commoner
    assert found.time_note.endswith("; %d/%m/%Y would read every value too, and nothing decides: check this")
    assert profile("date", [each.replace("/", ".") for each in same]).time_format == "%d.%m.%Y"


def test_other_columns_are_no_times() -> None:
    draw = random.Random(0)
    columns: dict[str, list[str] | list[int] | list[float]] = {
        "id": [14_102_100 + k % 24 for k in range(4_000)],  # the digits of one day's hours, and no name
        "code": [20_000_000 + 7 * k for k in range(4_000)],
        "phone": [draw.randrange(10**9, 2 * 10**9) for _ in range(4_000)],
        "order": [1_500_000_000 + k for k in range(4_000)],
        "zip": [f"{draw.randrange(10_000, 99_999)}" for _ in range(4_000)],
        "price": [f"{draw.random() * 3000:.2f}" for _ in range(4_000)],
        "version": [f"1.{draw.randrange(9)}.{draw.randrange(9)}" for _ in range(400)],
        "title": [f"Film {k} The {k * 7}" for k in range(300)],
        "size": [f"{draw.randrange(1, 12)}/{draw.randrange(1, 12)}" for _ in range(300)],
        "length": [f"{draw.randrange(10, 20)}:{draw.randrange(10, 59)}" for _ in range(300)],
        "ip": [".".join(str(draw.randrange(1, 12)) for _ in range(4)) for _ in range(300)],
        "day": [1 + k % 31 for k in range(300)],
        "year": [1990 + k % 31 for k in range(300)],
    }
    assert {name: found for name, cells in columns.items() if (found := profile(name, cells).time_format)} == {}
    old = [(datetime(1958, 3, 29) + timedelta(days=7 * k)).strftime("%Y%m%d") for k in range(2_000)]
    assert profile("date", old).time_format == "%Y%m%d"
    assert profile("code", old).time_format is None
    assert profile("hour", [14_102_100 + k % 24 for k in range(4_000)]).time_format == "%y%m%d%H"  # by its name


def test_typed_times() -> None:
    stamps = profile_column(pl.Series("x", HOURS), complete=True)
    assert (stamps.time_format, stamps.time_note) == ("iso", "the file holds timestamps")
    lengths = profile_column(pl.Series("x", [timedelta(seconds=k) for k in range(9)]), complete=True)
    assert (lengths.time_format, lengths.numeric) == (None, True)


def test_the_time_of_the_row_is_the_one_named_so() -> None:
    birth = profile("birth_date", [(time - timedelta(days=9_000)).strftime("%d.%m.%Y") for time in HOURS])
    shown = profile("shown", [time.strftime("%d.%m.%Y %H:%M") for time in HOURS])
    at = profile("created_at", [time.strftime("%b %d, %Y") for time in HOURS])
    gaps = profile("ts", [time.strftime("%d.%m.%Y") if time.minute else "" for time in HOURS])
    assert find_time([birth, gaps, shown]) is shown
    assert find_time([birth, shown, at]) is at
    assert find_time([birth, gaps]) is None


@pytest.mark.parametrize(
    ("first", "step", "time_format", "parts"),
    [
        (HOURS[0], timedelta(minutes=17), "%d.%m.%Y %H:%M", ("hour", "weekday", "age")),
        (HOURS[0], timedelta(days=1), "%d.%m.%Y", ("weekday", "age")),
        (HOURS[0], timedelta(minutes=3), "%d.%m.%Y %H:%M", ("hour", "age")),  # four days
        (HOURS[0], timedelta(seconds=1), "iso", ()),
    ],
)
def test_parts_that_may_tell_rows_apart(
    first: datetime, step: timedelta, time_format: str, parts: tuple[str, ...]
) -> None:
    written = "%Y-%m-%d %H:%M:%S" if time_format == "iso" else time_format
    cells = pl.Series("at", [(first + k * step).strftime(written) for k in range(2_000)])
    assert parts_that_vary(cells, time_format) == parts
    if time_format == "iso":
        return
    typed = pl.Series("at", [first + k * step for k in range(2_000)])
    assert parts_that_vary(typed, "iso") == parts
    numbers = pl.Series("at", [int((first + k * step - datetime(1970, 1, 1)).total_seconds()) for k in range(2_000)])
    assert set(parts_that_vary(numbers, "seconds")) >= {*parts}


def test_features_from_time_are_offered_and_can_be_used_as_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    rows = [f"{draw.integers(9)},{time:%m/%d/%Y %I:%M %p},{draw.integers(2)}" for time in HOURS[:2_000]]
    Path("log.csv").write_text("item,seen,click\n" + "\n".join(rows) + "\n")
    text = draft_config("log.csv")
    assert (
        '  time_format: "%m/%d/%Y %I:%M %p"  # text such as 01/01/2024 12:00 AM; UTC where no zone is written' in text
    )
    offers = [line for line in text.splitlines() if "kind: time" in line]
    assert [line.partition(",")[0] for line in offers] == [
        "  # - {name: seen_hour",
        "  # - {name: seen_weekday",
        "  # - {name: seen_age",
    ]
    Path("exp.yaml").write_text(text.replace("  # - {name: seen_", "  - {name: seen_"))
    experiment = load_experiment("exp.yaml", ["training.epochs=1"])
    assert [feature.name for feature in experiment.features] == ["item", "seen_hour", "seen_weekday", "seen_age"]
    assert experiment.data.split.name == "time"
    assert train(experiment, "run").results is not None


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    rows = [f"{k % 9},{time:%d.%m.%Y} ,{k % 2}" if k % 5 else f"{k % 9},,{k % 2}" for k, time in enumerate(HOURS[:900])]
    (tmp_path / "log.csv").write_text("item,seen,click\n" + "\n".join(rows) + "\n")
    text = draft_config(tmp_path / "log.csv")
    assert "  time: null  # no column has a time in each row; seen has none in 20.0% of the rows; name one and" in text
    assert "  group: null  # no column looks like a user whose rows are ranked; name one, for GAUC" in text


@pytest.mark.parametrize(
    ("written", "zero"),
    [
        ("%Y-%m-%d %H:%M:%S", "0000-00-00 00:00:00"),
        ("%Y-%m-%d", "0000-00-00"),
        ("%d/%m/%Y", "00/00/0000"),
        ("%Y%m%d", "00000000"),
        ("%Y-%m-%dT%H:%M:%S.%fZ", "0000-00-00T00:00:00.000000Z"),
    ],
)
def test_a_date_of_zeros_is_missing(written: str, zero: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = [zero if k % 500 == 7 else time.strftime(written) for k, time in enumerate(HOURS)]
    found = profile("when", times)
    assert (found.null_words, found.missing) == ((zero,), 8 / 4_000)
    assert profile("when", [time.strftime(written) for time in HOURS]).time_format == found.time_format
    rows = [f"{k % 60},{time},{k % 2}" for k, time in enumerate(times)]
    (tmp_path / "log.csv").write_text("\n".join(["user,when,click", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    text = draft_config("log.csv")
    assert f'    null_values: ["", "{zero}"]  # texts that mean missing; a date of zeros is none\n' in text
    assert "\n  time: when\n" in text
    reason = "0.20% of the rows have no when, which splits them: such rows go to quarantine.jsonl"
    assert f"  on_bad_row: quarantine  # {reason}\n" in text
    Path("exp.yaml").write_text(text)
    prepare(load_experiment(Path("exp.yaml")), "prepared")
    assert len(Path("prepared/quarantine.jsonl").read_text().splitlines()) == 8


def test_a_column_of_times_that_lacks_many_does_not_split_rows() -> None:
    often = profile("ts", ["0000-00-00" if k % 9 == 0 else f"{time:%Y-%m-%d}" for k, time in enumerate(HOURS)])
    assert often.time_format == "iso"
    assert find_time([often]) is None
    cells = [f"{time:%Y-%m-%d}" if k % 400 else None for k, time in enumerate(HOURS)]
    seldom = profile_column(pl.Series("at", cells), complete=True)
    assert find_time([often, seldom]) is seldom
    whole = profile("x", [f"{time:%Y-%m-%d}" for time in HOURS])
    assert find_time([seldom, whole]) is whole


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ("%Y%m%dT%H%M%SZ", "%Y%m%dT%H%M%S%z"),
        ("%Y%m%dT%H%M%S+0200", "%Y%m%dT%H%M%S%z"),
        ("%Y%m%d_%H%M", None),
        ("%d%m%Y %H%M%S", None),
        ("%Y-%m-%d-%H-%M", None),
        ("%Y-%m-%d-%H", None),
        ("%Y_%m_%d_%H_%M_%S", None),
        ("%d-%m-%Y-%H-%M", None),
        ("%Y年%m月%d日", None),
        ("%Y年%m月%d日 %H時%M分%S秒", None),
        ("%Y年%m月%d日 %H:%M", None),
        ("%Y년 %m월 %d일 %H시 %M분", None),
        ("%Y-%m-%d %H:%M:%S EST", None),
        ("%d.%m.%Y %H:%M CEST", None),
        ("%a %b %d %H:%M:%S PST %Y", None),
    ],
)
def test_less_usual_writings_are_found(written: str, found: str | None) -> None:
    guess = profile("when", [time.strftime(written) for time in HOURS])
    assert guess.time_format == (found or written)
    zone = next((word for word in ("CEST", "EST", "PST") if word in written), "")
    assert (f"always {zone}, which is not converted: hours are those of that zone" in guess.time_note) is bool(zone)


LIKE = "it looks like times in a form that is not read, such as"


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ([f"{time:%Y-%m-%d %H:%M:%S} {'EST' if time.day > 9 else 'EDT'}" for time in HOURS], "zones, EDT and EST,"),
        ([f"{time.day}. {'Januar' if time.month == 1 else 'Februar'} {time.year}" for time in HOURS], LIKE),
        ([f"{time.day} {'janv.' if time.month == 1 else 'février'} {time.year}" for time in HOURS], LIKE),
        ([f"{time.day} {'января' if time.month == 1 else 'февраля'} {time.year}" for time in HOURS], LIKE),
        ([f"{time.day} de {'enero' if time.month == 1 else 'febrero'} de {time.year}" for time in HOURS], LIKE),
        ([f"{time:%G-W%V}" for time in HOURS], LIKE),
        ([f"2024-Q{1 + k % 4}" for k in range(400)], LIKE),
        ([f"{time:%Y-%m-%d} 24:00" if k == 9 else f"{time:%Y-%m-%d %H:%M}" for k, time in enumerate(HOURS)], LIKE),
        (["soon" if k == 9 else f"{time:%Y-%m-%d}" for k, time in enumerate(HOURS)], "times except 'soon': to read it"),
    ],
)
def test_what_looks_like_times_and_is_not_read_is_said(
    cells: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reason in profile("when", cells).unread_time
    rows = [f"{k % 60},{cell},{k % 2}" for k, cell in enumerate(cells)]
    (tmp_path / "log.csv").write_text("\n".join(["user,when,click", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    lines = draft_config("log.csv").splitlines()
    assert any(
        line.startswith("  time: null  # ") and f"; when: {profile('when', cells).unread_time}" in line
        for line in lines
    )
    assert any(
        line.startswith("  # - {name: when, kind: categorical}  # left out: ") and reason in line for line in lines
    )


def test_words_and_numbers_do_not_look_like_times() -> None:
    draw = random.Random(0)
    for cells in (
        [f"Film {k} (1{draw.randrange(900, 999)})" for k in range(300)],
        [f"{draw.randrange(1, 31)} Mars bars" for _ in range(300)],
        [f"{draw.randrange(1, 31)} may {draw.choice('abc')}" for _ in range(300)],
        [f"v{draw.randrange(9)}.{draw.randrange(9)}" for _ in range(300)],
        [f"2024-{draw.randrange(100, 999)}" for _ in range(300)],
        [f"zone {draw.choice(['EST', 'CET'])}" for _ in range(300)],
        [f"192.168.{draw.randrange(255)}.{draw.randrange(255)}" for _ in range(300)],
    ):
        found = profile("x", cells)
        assert (found.unread_time, found.time_format) == ("", None), cells[0]


def test_times_of_day_beside_a_date_are_mentioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [f"{k % 60},{time:%Y-%m-%d},{time:%H:%M:%S},{k % 2}" for k, time in enumerate(HOURS)]
    (tmp_path / "log.csv").write_text("\n".join(["user,date,time,click", *rows]) + "\n")
    monkeypatch.chdir(tmp_path)
    text = draft_config("log.csv")
    assert "\n  time: date\n" in text
    assert "; the times of day in time are not used: write both in one column to order the rows of a day\n" in text


# --- raw times are no inputs -----------------------------------------------------------------------------------------


def reasons(folder: Path, columns: dict[str, list[str]]) -> dict[str, str]:
    """Returns why columns of a log are left out; its rows have a price, and half of them are clicks."""
    columns = {**columns, "price": [f"{k % 90}.5" for k in range(len(HOURS))], "click": ["0", "1"] * (len(HOURS) // 2)}
    lines = [",".join(columns), *map(",".join, zip(*columns.values(), strict=True))]
    (folder / "log.csv").write_text("\n".join(lines) + "\n")
    return {each.profile.name: each.reason for each in infer_log(folder).features if each.kind is None}


def infer_log(folder: Path) -> Inference:
    return infer(resolve_files(["log.csv"], folder, [".csv"]))


def test_numbers_that_are_times_are_left_out_as_times(tmp_path: Path) -> None:
    seconds = [int(time.timestamp()) for time in HOURS]
    midnights = [str(each // 86_400 * 86_400) for each in seconds]
    found = reasons(
        tmp_path,
        {
            "ts": ["" if k % 3 == 0 else each for k, each in enumerate(midnights)],
            "sent": [f"{each:.9e}" for each in seconds],
            "updated_at": [str(each * 1000 + 7) for each in reversed(seconds)],
            "day": [time.strftime("%Y%m%d") for time in HOURS],
        },
    )
    times = "times: as values they would not repeat; `kind: time` uses parts of them"
    assert found["sent"] == found["ts"] == found["day"] == times
    assert found["updated_at"].startswith("the time of the row")
    assert {each.name: each.missing for each in infer_log(tmp_path).incomplete_times} == {
        "ts": pytest.approx(1 / 3, abs=0.01)
    }


@pytest.mark.parametrize(
    ("unit", "start", "name", "named"),
    [
        (60, 0.0, "minutes since 1970", True),
        (3_600, 0.0, "hours since 1970", True),
        (86_400, 0.0, "days since 1970", True),
        (86_400, 25_569.0, "days as Excel counts them", True),
        (86_400, 2_440_587.5, "Julian days", True),
        (60, 0.0, "minutes since 1970", False),
        (86_400, 25_569.0, "days as Excel counts them", False),
    ],
)
def test_a_unit_that_is_not_read_is_named(tmp_path: Path, unit: int, start: float, name: str, named: bool) -> None:
    numbers = [(time - datetime(1970, 1, 1)).total_seconds() / unit + start for time in HOURS]
    column = "timestamp" if named else "x"
    cells = [f"{each:.5f}" if start else str(int(each)) for each in numbers]
    reason = reasons(tmp_path, {column: cells})[column]
    assert reason.startswith(f"it looks like times in a unit that is not read, {name}, such as {float(cells[0]):.10g}")
    conversion = reason.rpartition(", ")[2]
    assert conversion.startswith(("x *", "(x -"))
    x = numbers[7]
    assert eval(conversion, {"x": x}) == pytest.approx((HOURS[7] - datetime(1970, 1, 1)).total_seconds(), abs=1)
    text = draft_config(str(tmp_path / "log.csv"))
    assert f"no column has a time in each row; {column}: it looks like times in a unit" in text


def test_durations_and_ids_are_no_times() -> None:
    assert not profile("watch_time", [30_000 + k * 37 % 9_000 for k in range(4_000)]).unread_time
    assert not profile("views_at_signup", [8_000 + k * 37 % 9_000 for k in range(4_000)]).unread_time
    assert not profile("item_id", [28_000_000 + 17 * k for k in range(4_000)]).unread_time
    assert not profile("price", [33_000.5 + k * 37 % 9_000 for k in range(4_000)]).unread_time


def test_a_number_that_stands_for_no_time_is_named() -> None:
    seconds = [int(time.timestamp()) if k % 4 else 0 for k, time in enumerate(HOURS)]
    found = profile("ts", seconds)
    assert (
        found.unread_time == "seconds since 1970, but 0 in 25.0% of the rows, which is no time: leave these cells empty"
    )


@pytest.mark.parametrize("form", ["/Date({ms})/", "{iso}[Europe/Zurich]", "{iso}+02:00[Europe/Zurich]"])
def test_forms_of_programs_that_are_not_read_are_named(form: str) -> None:
    cells = [form.format(ms=int(time.timestamp()) * 1_000, iso=time.isoformat()) for time in HOURS]
    assert profile("t", cells).unread_time.startswith("it looks like times in a form that is not read, such as ")

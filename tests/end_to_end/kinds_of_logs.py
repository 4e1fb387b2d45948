"""Draws small logs of the kinds that people bring; each function writes one and returns what to read."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import polars as pl

ROWS = 1200
_START = dt.datetime(2024, 3, 1)


class Drawn:
    """The columns that all logs are made of: what a user does with an item, every 37 minutes."""

    def __init__(self, rows: int = ROWS) -> None:
        draw = np.random.default_rng(5)
        self.rows = rows
        self.users = draw.integers(0, 60, rows)
        self.items = draw.integers(0, 40, rows)
        liked, popular = draw.normal(size=60), draw.normal(size=40)
        odds = liked[self.users] + popular[self.items] - 1.0
        self.clicks = (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
        self.rates = draw.beta(2 + self.clicks, 7).round(4)
        self.seconds = np.where(self.clicks == 1, draw.gamma(2.0, 30.0, rows), 0.0).round(2)
        self.times = [_START + dt.timedelta(minutes=37 * row) for row in range(rows)]

    def text(self, header: Sequence[str], row: Callable[[int], Sequence[object]], separator: str = ",") -> str:
        """Returns delimited text; without a header if that is empty."""
        lines = [separator.join(header)] if header else []
        lines += [separator.join(map(str, row(number))) for number in range(self.rows)]
        return "\n".join(lines) + "\n"

    def plain(self, number: int) -> Sequence[object]:
        return self.users[number], self.items[number], self.clicks[number]


def _write(folder: Path, name: str, content: str, encoding: str = "utf-8") -> Path:
    path = folder / name
    path.write_bytes(content.encode(encoding))
    return path


def hour_as_digits(folder: Path) -> Path:
    log = Drawn()
    return _write(folder, "hours.csv", log.text(["id", "click", "hour", "site_id", "device_id"], lambda k: [
        10**18 + 91 * k, log.clicks[k], f"{log.times[k]:%y%m%d%H}", f"{log.items[k]:08x}", f"{log.users[k]:08x}",
    ]))  # fmt: skip


def soft_label(folder: Path) -> Path:
    log = Drawn()
    return _write(
        folder, "ctr.csv", log.text(["shop", "category", "ctr"], lambda k: [log.users[k], log.items[k], log.rates[k]])
    )


def watch_time(folder: Path) -> Path:
    log = Drawn()
    header = ["user", "video", "watch_seconds"]
    return _write(
        folder, "watched.csv", log.text(header, lambda k: [log.users[k], log.items[k], f"{log.seconds[k]:.2f}"])
    )


def float_ids(folder: Path) -> Path:
    log = Drawn()
    return _write(folder, "floats.csv", log.text(["user_id", "item_id", "click"], lambda k: [
        "" if k % 17 == 0 else f"{log.users[k]}.0", f"{log.items[k]}.0", log.clicks[k]]))  # fmt: skip


def decimal_comma(folder: Path) -> Path:
    log = Drawn()
    text = log.text(["user", "price", "title", "click"], lambda k: [
        log.users[k], f"{log.items[k] * 1.75:.2f}".replace(".", ","), f'"No ""{log.items[k]}"" ; b"', log.clicks[k],
    ], ";")  # fmt: skip
    return _write(folder, "prices.csv", ("\ufeff" + text).replace("\n", "\r\n"))


def utf16(folder: Path) -> Path:
    log = Drawn()
    return _write(folder, "wide.csv", log.text(["user", "item", "click"], log.plain), "utf-16")


def day_first(folder: Path) -> Path:
    log = Drawn()
    return _write(folder, "days.csv", log.text(["user", "item", "date", "click"], lambda k: [
        log.users[k], log.items[k], f"{log.times[k]:%d/%m/%Y %H:%M}", log.clicks[k]]))  # fmt: skip


def positives_alone(folder: Path) -> Path:
    log = Drawn()
    return _write(folder, "plays.tsv", log.text(["user", "artist"], lambda k: [log.users[k], log.items[k]], "\t"))


def play_counts(folder: Path) -> Path:
    log = Drawn()
    return _write(folder, "counts.tsv", log.text(["user", "artist", "plays"], lambda k: [
        log.users[k], log.items[k], 1 + log.clicks[k] * (k % 90)], "\t"))  # fmt: skip


def nested_parquet(folder: Path) -> Path:
    log = Drawn()
    path = folder / "nested.parquet"
    pl.DataFrame({
        "user": log.users,
        "price": pl.Series([f"{item}.50" for item in log.items]).cast(pl.Decimal(10, 2)),
        "ts": log.times,
        "geo": [{"lat": float(item) + 0.25, "lon": 1.0} for item in log.items],
        "basket": [[{"id": int(item), "n": 1}, {"id": int(item) + 1, "n": 2}] for item in log.items],
        "nothing": pl.Series([None] * log.rows, dtype=pl.Null),
        "click": log.clicks.astype(bool),
    }).write_parquet(path)  # fmt: skip
    return path


def key_value_folders(folder: Path) -> Path:
    log = Drawn()
    frame = pl.DataFrame({"user": log.users, "item": log.items, "click": log.clicks})
    for day in range(4):
        place = folder / "lake" / f"dt=2024-03-0{day + 1}"
        place.mkdir(parents=True)
        frame[day * 300 : day * 300 + 300].write_parquet(place / "part-0.parquet")
        (place / "_SUCCESS").touch()
    return folder / "lake"


def zip_archive(folder: Path) -> Path:
    log = Drawn()
    with zipfile.ZipFile(folder / "log.csv.zip", "w") as archive:
        archive.writestr("log.csv", log.text(["user", "item", "click"], log.plain))
    return folder / "log.csv.zip"


def bzip2(folder: Path) -> Path:
    log = Drawn()
    (folder / "log.csv.bz2").write_bytes(bz2.compress(log.text(["user", "item", "click"], log.plain).encode()))
    return folder / "log.csv.bz2"


def nested_json_lines(folder: Path) -> Path:
    log = Drawn()
    users = [{"id": int(user), "age": [None, 30][k % 2]} for k, user in enumerate(log.users)]
    rows = [{"user": users[k], "item": int(log.items[k]), "click": bool(log.clicks[k])} for k in range(log.rows)]
    return _write(folder, "nested.jsonl", "\n".join(map(json.dumps, rows)) + "\n")


def arrow_file(folder: Path) -> Path:
    log = Drawn()
    pl.DataFrame({"user": log.users, "item": log.items, "click": log.clicks}).write_ipc(folder / "log.arrow")
    return folder / "log.arrow"


def avro_file(folder: Path) -> Path:
    log = Drawn()
    pl.DataFrame({"user": log.users, "item": log.items, "click": log.clicks}).write_avro(folder / "log.avro")
    return folder / "log.avro"


def ratings(folder: Path, name: str, separator: str) -> Path:
    log = Drawn()
    return _write(folder, name, log.text([], lambda k: [
        1 + log.users[k], 1 + log.items[k], 1 + 3 * log.clicks[k] + k % 2, 900_000_000 + 60 * k,
    ], separator))  # fmt: skip


def money(folder: Path) -> Path:
    log = Drawn()
    return _write(folder, "money.csv", log.text(["user", "spend", "discount", "click"], lambda k: [
        log.users[k], f'"${1000 + 977 * log.items[k]:,}"', f"{log.items[k]}%", log.clicks[k]]))  # fmt: skip


def event_column(folder: Path) -> Path:
    log = Drawn()
    return _write(folder, "events.csv", log.text(["user", "item", "action", "time"], lambda k: [
        log.users[k], log.items[k], ["impression", "click"][log.clicks[k]], int(log.times[k].timestamp()),
    ]))  # fmt: skip


def criteo_layout(folder: Path) -> Path:
    log, draw = Drawn(), np.random.default_rng(6)
    counts = draw.geometric(0.02, (log.rows, 13)) - 1
    hashes = draw.integers(0, 300, (log.rows, 26))
    with gzip.open(folder / "day_0.gz", "wt") as sink:
        for k in range(log.rows):
            numbers = [str(count) if (k + place) % 4 else "" for place, count in enumerate(counts[k])]
            sink.write("\t".join([str(log.clicks[k]), *numbers, *(f"{each:08x}" for each in hashes[k])]) + "\n")
    return folder / "day_0.gz"


def large_ids(folder: Path) -> Path:
    rows, draw = 20_000, np.random.default_rng(7)
    networks = draw.choice(360_000, 1500, replace=False)
    slots = draw.choice(np.arange(3, 500), 120, replace=False)
    who, where = draw.integers(0, 1500, rows), draw.integers(0, 120, rows)
    hashes = (who.astype(np.uint64) + np.uint64(1)) * np.uint64(11400714819323198485)
    odds = draw.normal(size=1500)[who] + 1.5 * draw.normal(size=120)[where] - 3.5
    installed = (draw.random(rows) < 1 / (1 + np.exp(-odds))).astype(int)
    at = [f"{_START + dt.timedelta(seconds=70 * k):%m/%d/%Y %H:%M}" for k in range(rows)]
    columns = {"network": networks[who], "slot": slots[where], "url_hash": hashes, "at": at, "installed": installed}
    pl.DataFrame(columns).write_csv(folder / "large.csv")
    return folder / "large.csv"


def wide(folder: Path, columns: int = 400) -> Path:
    draw = np.random.default_rng(8)
    frame = {f"f{number}": draw.random(200).round(3) for number in range(columns)}
    pl.DataFrame({**frame, "y": draw.integers(0, 2, 200)}).write_csv(folder / "wide.csv")
    return folder / "wide.csv"

"""Public layouts and typed headers: recognised from a sample drawn in the layout, with names, roles and kinds."""

from __future__ import annotations

import json
import random
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ziggurat.cli.init import draft_config
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.training.experiment import Experiment, load_experiment
from ziggurat.training.train import train

ROWS = 600
DRAW = random.Random(0)
ARTISTS = [str(uuid.UUID(int=DRAW.getrandbits(128), version=4)) for _ in range(30)]
ASINS = [f"B00{DRAW.randrange(10**6):07d}" for _ in range(40)]
REVIEWERS = [f"A{DRAW.randrange(16**12):013X}" for _ in range(50)]


def text(row: Callable[[int], list[object]], delimiter: str = "\t", header: str = "") -> str:
    return header + "".join(delimiter.join(map(str, row(k))) + "\n" for k in range(ROWS))


def objects(row: Callable[[int], dict[str, object]]) -> str:
    return "".join(json.dumps(row(k)) + "\n" for k in range(ROWS))


def seconds(k: int) -> int:
    return 1_600_000_000 + 3_600 * k + DRAW.randrange(3_000)


def ratings(k: int) -> list[object]:
    return [DRAW.randrange(1, 40), DRAW.randrange(1, 90), DRAW.randrange(1, 6), seconds(DRAW.randrange(ROWS))]


def amazon(k: int) -> list[object]:
    return [DRAW.choice(REVIEWERS), DRAW.choice(ASINS), f"{DRAW.randrange(1, 6)}.0", seconds(k)]


def criteo(k: int) -> list[object]:
    counts = ["" if DRAW.random() < 0.2 else int(DRAW.lognormvariate(1, 2)) - 1 for _ in range(13)]
    return [int(DRAW.random() < 0.3), *counts, *(f"{DRAW.randrange(50) * 7919:08x}" for _ in range(26))]


def avazu(k: int) -> list[object]:
    hour = (datetime(2014, 10, 21) + timedelta(hours=k // 6)).strftime("%y%m%d%H")
    hashes = [f"{DRAW.randrange(20):08x}" for _ in range(8)]
    sizes = [15_700 + DRAW.randrange(60), 320, 50, 1_722, DRAW.randrange(4), 35, -1, 79]
    return [10**18 + 97 * k, DRAW.randrange(2), hour, 1005, k % 2, *hashes, 1, k % 3, *sizes]


AVAZU = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
    "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21\n"
).replace("device_id,device_ip,device_model", "device_id,device_model")
KUAIREC = "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio\n"


def kuairec(k: int) -> list[object]:
    played, length, when = DRAW.randrange(20_000), 5_000 + 100 * DRAW.randrange(90), seconds(k) + 0.25
    shown = datetime.fromtimestamp(when, UTC)
    time, date = shown.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3], shown.strftime("%Y%m%d")
    return [DRAW.randrange(40), DRAW.randrange(90), played, length, time, date, when, round(played / length, 6)]


def taobao(k: int) -> list[object]:
    behaviour = DRAW.choices(["pv", "buy", "cart", "fav"], [90, 4, 4, 2])[0]
    return [DRAW.randrange(1, 50), DRAW.randrange(1, 5_000_000), DRAW.randrange(1, 99), behaviour, seconds(k)]


def lastfm_plays(k: int) -> list[object]:
    return [f"{DRAW.randrange(40):040x}", DRAW.choice([*ARTISTS, ""]), "a name", 1 + int(DRAW.expovariate(0.01))]


def review(k: int) -> dict[str, object]:
    stars, when = float(DRAW.randrange(1, 6)), seconds(k)
    return {
        "reviewerID": DRAW.choice(REVIEWERS), "asin": DRAW.choice(ASINS), "reviewerName": "J. Doe",
        "helpful": [0, k % 9], "reviewText": f"text {k}", "overall": stars, "summary": f"summary {k}",
        "unixReviewTime": when,
        "reviewTime": datetime.fromtimestamp(when, UTC).strftime("%m %d, %Y"),
    }  # fmt: skip


def review_2023(k: int) -> dict[str, object]:
    return {
        "rating": float(DRAW.randrange(1, 6)), "title": f"title {k}", "text": f"text {k}", "asin": DRAW.choice(ASINS),
        "parent_asin": DRAW.choice(ASINS), "user_id": DRAW.choice(REVIEWERS), "timestamp": 1000 * seconds(k) + 7,
        "helpful_vote": k % 3, "verified_purchase": bool(k % 2),
    }  # fmt: skip


def yelp(k: int) -> dict[str, object]:
    return {
        "review_id": f"r{k}-x", "user_id": f"u{DRAW.randrange(30)}-_", "business_id": f"b{DRAW.randrange(30)}-_",
        "stars": float(DRAW.randrange(1, 6)), "useful": k % 3, "funny": 0, "cool": k % 2, "text": f"text {k}",
        "date": datetime.fromtimestamp(seconds(k), UTC).strftime("%Y-%m-%d %H:%M:%S"),
    }  # fmt: skip


Expected = tuple[str, str | None, str | None, str, dict[str, str]]
"""Label with its rule, group, time, format of times, and the kind of each feature."""
IDS = {"user_id": "categorical", "item_id": "categorical"}
RATED: Expected = ("rating >= 4", "user_id", "timestamp", "seconds", IDS)
LOGS: dict[str, tuple[str, str, Expected]] = {
    "MovieLens": ("u.data", text(ratings), RATED),
    "Amazon ratings": ("ratings_Music.csv", text(amazon, ","), RATED),
    "Amazon ratings, item first": ("Music.csv", text(lambda k: [amazon(k)[p] for p in (1, 0, 2, 3)], ","), RATED),
    "Criteo": (
        "train.txt",
        text(criteo),
        (
            "label",
            None,
            None,
            "number",
            {**{f"I{k}": "numeric" for k in range(1, 14)}, **{f"C{k}": "categorical" for k in range(1, 27)}},
        ),
    ),
    "Avazu": ("train", text(avazu, ",", AVAZU), ("click", None, "hour", "%y%m%d%H", {"C14": "categorical", "C20": ""})),
    "Taobao": (
        "UserBehavior.csv",
        text(taobao, ","),
        ("behavior = buy", "user_id", "timestamp", "seconds", {**IDS, "category_id": "categorical"}),
    ),
    "KuaiRec": (
        "big_matrix.csv",
        text(kuairec, ",", KUAIREC),
        (
            "watch_ratio >= 1",
            "user_id",
            "timestamp",
            "seconds",
            {"user_id": "categorical", "video_id": "categorical", "video_duration": "numeric", "play_duration": ""},
        ),
    ),
    "Amazon reviews": (
        "reviews_Music_5.json",
        objects(review),
        (
            "overall >= 4",
            "reviewerID",
            "unixReviewTime",
            "seconds",
            {"reviewerID": "categorical", "asin": "categorical", "summary": "", "reviewText": "", "helpful": ""},
        ),
    ),
    "Amazon reviews 2023": (
        "Music.jsonl",
        objects(review_2023),
        (
            "rating >= 4",
            "user_id",
            "timestamp",
            "milliseconds",
            {"user_id": "categorical", "parent_asin": "categorical", "text": "", "helpful_vote": ""},
        ),
    ),
    "Yelp": (
        "yelp_academic_dataset_review.json",
        objects(yelp),
        ("stars >= 4", "user_id", "date", "iso", {"business_id": "categorical", "useful": "", "text": ""}),
    ),
    "LastFM-360K": (
        "usersha1-artmbid-artname-plays.tsv",
        text(lastfm_plays),
        ("plays", "user_id", None, "number", {"user_id": "categorical", "artist_id": "categorical"}),
    ),
}


def drafted(folder: Path, name: str, content: str) -> tuple[str, Experiment]:
    (folder / name).write_text(content)
    drafted_text = draft_config(folder / name)
    (folder / "exp.yaml").write_text(drafted_text)
    return drafted_text, load_experiment(folder / "exp.yaml")


@pytest.mark.parametrize("log", LOGS)
def test_a_layout_is_recognised(log: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name, content, (label, group, time, time_format, kinds) = LOGS[log]
    drafted_text, experiment = drafted(tmp_path, name, content)
    data = experiment.data
    (made,) = data.labels
    rule = f" >= {made.at_least:g}" if made.at_least is not None else f" = {made.equals}" if made.equals else ""
    assert made.source_column + (rule if label != "plays" else "") == label
    assert (data.group, data.time, data.time_format) == (group, time, time_format)
    found = {feature.name: feature.kind for feature in experiment.features}
    assert {name: found.get(name, "") for name in kinds} == kinds
    assert "layout" in drafted_text
    train(load_experiment(tmp_path / "exp.yaml", ["training.epochs=1", "embeddings.dim=4"]), tmp_path / "run")


def test_a_log_of_positives_alone_is_named_with_what_to_do(tmp_path: Path) -> None:
    def play(k: int) -> list[object]:
        when = datetime.fromtimestamp(seconds(k), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return [f"user_{DRAW.randrange(20):06d}", when, DRAW.choice(ARTISTS), "an artist", "", f"track {k % 50}"]

    (tmp_path / "plays.tsv").write_text(text(play))
    with pytest.raises(ConfigError, match=r"LastFM-1K holds what people chose.*\n.*observed: true.*negatives"):
        draft_config(tmp_path / "plays.tsv")


@pytest.mark.parametrize("common", [True, False])
def test_ali_ccp_is_named_with_what_to_do(common: bool, tmp_path: Path) -> None:
    def row(k: int) -> list[object]:
        listed = "\x01".join(f"{field}\x02{DRAW.randrange(10**6)}\x031.0" for field in ("121", "122", "109_14"))
        return [f"{k:016x}", 3, listed] if common else [k, k % 2, 0, f"{k % 50:016x}", 3, listed]

    (tmp_path / "sample.csv").write_text(text(row, ","))
    with pytest.raises(DataError, match=r"Ali-CCP.*\n.*join the two files by the common feature index"):
        draft_config(tmp_path / "sample.csv")


def test_other_logs_are_no_layout(tmp_path: Path) -> None:
    rows = "".join(f"{k % 7}\t{k % 5}\t{k % 2}\t{k}\n" for k in range(300))
    (tmp_path / "log.tsv").write_text(rows)
    assert "the layout of" not in draft_config(tmp_path / "log.tsv", "column_3")


TYPES = {
    "user_id": "token", "item_id": "token", "price": "float", "genre": "token_seq", "item_list": "token_seq",
    "emb": "float_seq", "label": "float", "timestamp": "float",
}  # fmt: skip
TYPED = "\t".join(f"{name}:{kind}" for name, kind in TYPES.items()) + "\n"


def test_a_typed_header_is_honoured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def row(k: int) -> list[object]:
        genres = " ".join(DRAW.sample(["action", "drama", "comedy"], DRAW.randrange(1, 3)))
        items = " ".join(str(DRAW.randrange(1, 40)) for _ in range(5))
        return [
            DRAW.randrange(30),
            f"{DRAW.randrange(40)}.5",
            DRAW.randrange(9),
            genres,
            items,
            "0.5 0.25",
            k % 2,
            seconds(k),
        ]

    drafted_text, experiment = drafted(tmp_path, "clicks.inter", text(row, header=TYPED))
    features = {feature.name: feature for feature in experiment.features}
    assert {name: feature.kind for name, feature in features.items()} == {
        "user_id": "categorical",
        "item_id": "categorical",
        "price": "numeric",
        "genre": "bag",
        "item_list": "sequence",
    }
    assert features["user_id"].source_column == "user_id:token"
    assert getattr(features["item_id"], "type", None) == "text"  # a token, whatever it looks like
    assert getattr(features["item_list"], "delimiter", None) == " "
    assert "a list of numbers by its header" in drafted_text
    assert (experiment.data.group, experiment.data.time, experiment.data.time_format) == (
        "user_id:token",
        "timestamp:float",
        "seconds",
    )
    assert [(label.name, label.source_column) for label in experiment.data.labels] == [("label", "label:float")]
    finished = train(load_experiment(tmp_path / "exp.yaml", ["training.epochs=1"]), tmp_path / "run")
    assert finished.results is not None


def test_ratings_with_two_colons_between_cells(tmp_path: Path) -> None:
    drafted_text, experiment = drafted(tmp_path, "ratings.dat", text(ratings, "::"))
    assert '    delimiter: "::"' in drafted_text
    assert [feature.name for feature in experiment.features] == ["user_id", "item_id"]
    assert (experiment.data.time, experiment.data.group) == ("timestamp", "user_id")

"""Public logs whose layout is known: their columns, the label, the user, the time, and what would leak.

Most of them have no header, so they are recognised by their values; the others by the names in their header. A layout
is one entry of :data:`LAYOUTS`: to add one, say how its first columns look and what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Literal

import polars as pl

from ziggurat.core.errors import ConfigError, DataError
from ziggurat.data.inference.columns import ColumnProfile
from ziggurat.data.inference.labels import InferredLabel, find_labels
from ziggurat.data.inference.sample import LogSample

Kind = Literal["numeric", "categorical", "bag", "sequence", "vector"]
Check = Callable[[pl.Series], bool]

_EXAMINED = 5_000
_WITHIN_CELLS = (b"\x01", b"\x02", b"\x03")
_LATER = "it is known only after the label"
_TEXT = "text: nothing that repeats"


@dataclass(frozen=True, slots=True)
class LayoutLabel:
    """The label of a layout: its column, and the rule that makes it binary (None: as for any other log)."""

    column: str
    reason: str
    at_least: float | None = None
    equals: str | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """A known layout.

    Attributes:
        name: what it is, for people.
        columns: the names of its columns: all of a file without a header, in order; or those that a header must have.
        header: whether its files have a header, or are objects with these keys.
        looks: for a file without a header: how the cells of each column look, by its name.
        label, group, time: the columns of these roles, if there are any.
        time_format: how the times are written, if their values may not say so.
        kinds: column -> the kind of feature, and why; None leaves it out.
        refused: why it cannot be read as it is, and what to do.
    """

    name: str
    columns: tuple[str, ...]
    header: bool = False
    looks: Mapping[str, Check] = field(default_factory=dict[str, Check])
    label: LayoutLabel | None = None
    group: str | None = None
    time: str | None = None
    time_format: str | None = None
    kinds: Mapping[str, tuple[Kind | None, str]] = field(default_factory=dict[str, tuple[Kind | None, str]])
    refused: tuple[str, str] | None = None


def recognise(sample: LogSample, place: str) -> Layout | None:
    """Returns the layout of a sampled log, or None. A file without a header gets the layout's names.

    Raises:
        DataError: the layout is known, but cannot be read as it is; the hint says what to do.
    """
    header = sample.format != "csv" or sample.header
    names = sample.frame.columns
    frame = _at_commas(sample) if sample.dialect.delimiter in _WITHIN_CELLS and not sample.header else sample.frame
    found = next((each for each in LAYOUTS if each.header == header and _is(each, frame)), None)
    if found is None:
        return None
    if found.refused is not None:
        raise DataError(f"{place}: this looks like {found.name}: {found.refused[0]}", found.refused[1])
    if not found.header and list(found.columns) != names:
        sample.frame.columns = list(found.columns)
    return found


def _at_commas(sample: LogSample) -> pl.DataFrame:
    """Returns the rows of a log split at commas that was sampled as split at a character within its cells."""
    delimiter = sample.dialect.delimiter.decode()
    rows = sample.frame.head(_EXAMINED).select(pl.concat_str(pl.all().fill_null(""), separator=delimiter))
    cells = rows.to_series().str.split(",")
    width = cells.list.len().min()
    if cells.list.len().max() != width or not isinstance(width, int):
        return sample.frame
    return cells.list.to_struct(fields=[f"column_{number}" for number in range(1, width + 1)]).struct.unnest()


def label_of(
    layout: Layout | None, profiles: Sequence[ColumnProfile], requested: str | None, path: PurePath
) -> list[InferredLabel]:
    """Returns the labels: the requested one, that of the layout, or what any log may have.

    Raises:
        ConfigError: as :func:`~ziggurat.data.inference.labels.find_labels`; or the layout holds positives alone.
    """
    if layout is None or requested is not None:
        return find_labels(profiles, requested, path)
    if layout.label is None:
        raise ConfigError(
            f"{path}: {layout.name} holds what people chose and nothing else: there is no label",
            "let negatives be sampled (docs/preparation.md): under `data` of a config of your own, set "
            "`labels: [{name: played, observed: true}]` and `negatives: {name: popularity, user: user_id, item: "
            f"artist_id}}`; the columns are {', '.join(layout.columns)}",
        )
    given = layout.label
    (found,) = find_labels(profiles, given.column, path)
    if given.at_least is None and given.equals is None:
        return [replace(found, reason=found.reason.replace("as asked", given.reason, 1))]
    return [InferredLabel(found.profile, given.reason, given.at_least, given.equals, name=found.name)]


def _is(layout: Layout, frame: pl.DataFrame) -> bool:
    if layout.header:
        return set(layout.columns) <= set(frame.columns)
    if frame.width != len(layout.columns):
        return False
    cells = (frame.to_series(place).head(_EXAMINED).drop_nulls() for place in range(frame.width))
    return all(
        column.dtype == pl.String and layout.looks[name](column)
        for name, column in zip(layout.columns, cells, strict=True)
        if name in layout.looks
    )


def _matches(pattern: str) -> Check:
    """Cells that match a pattern throughout; a column without cells matches."""
    return lambda cells: bool(cells.str.contains(f"^(?:{pattern})$").all())


def _present(pattern: str) -> Check:
    """As :func:`_matches`, and there is a cell."""
    return lambda cells: len(cells) > 0 and _matches(pattern)(cells)


def _between(low: float, high: float) -> Check:
    """Numbers between two bounds."""

    def check(cells: pl.Series) -> bool:
        numbers = cells.cast(pl.Float64, strict=False)
        return len(cells) > 0 and numbers.null_count() == 0 and bool(numbers.is_between(low, high).all())

    return check


def _all(*checks: Check) -> Check:
    return lambda cells: all(check(cells) for check in checks)


def _recurring(cells: pl.Series) -> bool:
    """Whether some cells occur again."""
    return cells.n_unique() < len(cells)


def _ids(names: Sequence[str]) -> dict[str, tuple[Kind | None, str]]:
    return dict.fromkeys(names, ("categorical", "an id of the layout"))


_WHOLE = _present("[0-9]+")
_SECONDS = _all(_WHOLE, _between(7e8, 2.2e9))
_STARS = _all(_present(r"[0-9](?:\.[05])?|10"), _between(0, 10), _recurring)
_UUID = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_ASIN = _all(_present("[0-9A-Z]{10}"), _recurring)
_AMAZON_IDS = {"user_id": _present("[A-Z0-9]{11,24}"), "item_id": _ASIN}
_PAIRS = _present("[^\x01\x02\x03]*\x02[^\x01\x02\x03]*\x03.*")
_RATING = LayoutLabel("rating", "the rating of the layout; positive from 4 on", at_least=4.0)
_CRITEO_NUMBERS, _CRITEO_IDS = [f"I{k}" for k in range(1, 14)], [f"C{k}" for k in range(1, 27)]
_ALI_CCP = (
    "its rows lie in two files, a skeleton with the labels and the common features, whose cells hold lists of "
    "field, feature and value",
    "join the two files by the common feature index and write a column for each field: the documentation has the few "
    "lines of Python (docs/values.md, public layouts)",
)


def _rating_log(name: str, ids: tuple[str, str], looks: Mapping[str, Check]) -> Layout:
    """Returns the layout of lines of two ids, a rating and seconds since 1970, without a header.

    Args:
        name: the layout's name.
        ids: the names of the first two columns, ``user_id`` and ``item_id`` in their order.
        looks: how the ids look, by these names.
    """
    return Layout(
        name,
        (*ids, "rating", "timestamp"),
        looks={**looks, "rating": _STARS, "timestamp": _SECONDS},
        label=_RATING,
        group="user_id",
        time="timestamp",
        time_format="seconds",
        kinds=_ids(["user_id", "item_id"]),
    )


LAYOUTS: tuple[Layout, ...] = (
    _rating_log(
        "MovieLens (u.data, ratings.dat) or another log of user, item, rating, time",
        ("user_id", "item_id"),
        {"user_id": _all(_WHOLE, _recurring), "item_id": _WHOLE},
    ),
    _rating_log("Amazon ratings (user, item, rating, time)", ("user_id", "item_id"), _AMAZON_IDS),
    _rating_log("Amazon ratings (item, user, rating, time)", ("item_id", "user_id"), _AMAZON_IDS),
    Layout(
        "Criteo (label, 13 counts, 26 hashed categories)",
        ("label", *_CRITEO_NUMBERS, *_CRITEO_IDS),
        looks={
            "label": _present("[01]"),
            **dict.fromkeys(_CRITEO_NUMBERS, _matches("-?[0-9]+")),
            **dict.fromkeys(_CRITEO_IDS, _matches("[0-9a-f]{8}")),
        },
        label=LayoutLabel("label", "the click of the layout"),
        kinds={
            **dict.fromkeys(_CRITEO_NUMBERS, ("numeric", "a count of the layout")),
            **_ids(_CRITEO_IDS),
        },
    ),
    Layout(
        "Taobao UserBehavior",
        ("user_id", "item_id", "category_id", "behavior", "timestamp"),
        looks={
            "user_id": _all(_WHOLE, _recurring),
            "item_id": _WHOLE,
            "category_id": _WHOLE,
            "behavior": _present("pv|buy|cart|fav"),
            "timestamp": _present("-?[0-9]+"),
        },
        label=LayoutLabel("behavior", "bought, rather than viewed (pv), added to cart or fav", equals="buy"),
        group="user_id",
        time="timestamp",
        time_format="seconds",
        kinds=_ids(["user_id", "item_id", "category_id"]),
    ),
    Layout(
        "Ali-CCP's skeleton",
        ("sample_id", "click", "conversion", "common_feature_index", "feature_num", "feature_list"),
        looks={"sample_id": _WHOLE, "click": _present("[01]"), "conversion": _present("[01]"), "feature_list": _PAIRS},
        refused=_ALI_CCP,
    ),
    Layout(
        "Ali-CCP's common features",
        ("common_feature_index", "feature_num", "feature_list"),
        looks={"feature_num": _WHOLE, "feature_list": _PAIRS},
        refused=_ALI_CCP,
    ),
    Layout(
        "LastFM-1K",
        ("user_id", "timestamp", "artist_id", "artist", "track_id", "track"),
        looks={
            "user_id": _present("user_[0-9]{6}"),
            "timestamp": _present("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z"),
            "artist_id": _matches(_UUID),
            "track_id": _matches(_UUID),
        },
        group="user_id",
        time="timestamp",
    ),
    Layout(
        "LastFM-360K",
        ("user_id", "artist_id", "artist", "plays"),
        looks={
            "user_id": _present("[0-9a-f]{40}"),
            "artist_id": _matches(_UUID),
            "plays": _WHOLE,
        },
        label=LayoutLabel("plays", "how often the user played the artist"),
        group="user_id",
    ),
    Layout(
        "Avazu",
        ("id", "click", "hour", "C1", "banner_pos", "site_id", "app_id", "device_id", "C14", "C21"),
        header=True,
        label=LayoutLabel("click", "the click of the layout"),
        time="hour",
        kinds={
            "id": (None, "an id that is different in every row"),
            **_ids(["C1", *(f"C{k}" for k in range(14, 22)), "banner_pos", "device_type", "device_conn_type"]),
        },
    ),
    Layout(
        "KuaiRec",
        ("user_id", "video_id", "play_duration", "video_duration", "watch_ratio"),
        header=True,
        label=LayoutLabel("watch_ratio", "watched to the end or longer", at_least=1.0),
        group="user_id",
        time="timestamp",
        kinds={
            "play_duration": (None, f"how long it was watched: {_LATER}"),
            "video_duration": ("numeric", "milliseconds"),
            **_ids(["user_id", "video_id"]),
        },
    ),
    Layout(
        "Amazon reviews",
        ("reviewerID", "asin", "overall", "unixReviewTime"),
        header=True,
        label=LayoutLabel("overall", "the rating of the layout; positive from 4 on", at_least=4.0),
        group="reviewerID",
        time="unixReviewTime",
        kinds={
            "reviewText": (None, f"{_TEXT}, and it says how the rating is"),
            "summary": (None, f"{_TEXT}, and it says how the rating is"),
            "reviewerName": (None, "another name of the user"),
            "helpful": (None, _LATER),
            "vote": (None, _LATER),
            **_ids(["reviewerID", "asin"]),
        },
    ),
    Layout(
        "Amazon reviews (2023)",
        ("user_id", "parent_asin", "rating", "timestamp"),
        header=True,
        label=_RATING,
        group="user_id",
        time="timestamp",
        kinds={
            "title": (None, f"{_TEXT}, and it says how the rating is"),
            "text": (None, f"{_TEXT}, and it says how the rating is"),
            "images": (None, "pictures of the review"),
            "helpful_vote": (None, _LATER),
            **_ids(["user_id", "asin", "parent_asin"]),
        },
    ),
    Layout(
        "Yelp reviews",
        ("review_id", "user_id", "business_id", "stars", "date"),
        header=True,
        label=LayoutLabel("stars", "the rating of the layout; positive from 4 on", at_least=4.0),
        group="user_id",
        time="date",
        kinds={
            "review_id": (None, "an id that is different in every row"),
            "text": (None, f"{_TEXT}, and it says how the rating is"),
            **dict.fromkeys(("useful", "funny", "cool"), (None, f"votes of others: {_LATER}")),
            **_ids(["user_id", "business_id"]),
        },
    ),
)
"""All known layouts, the first that fits is taken."""

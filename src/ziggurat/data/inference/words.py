"""Interprets the words in a column's name. Values decide which interpretations are possible, words which are likely."""

from __future__ import annotations

import re

LABEL_WORDS = frozenset({  # targets
    "approve", "approved", "bought", "buy", "canceled", "cancelled", "churn", "churned", "click", "clicked", "clicks",
    "clk", "conversion", "convert", "converted", "follow", "fraud", "fraudulent", "income", "install", "installed",
    "label", "like", "liked", "outcome", "purchase", "purchased", "response", "share", "spam", "subscribed",
    "survived", "target", "y",
})  # fmt: skip

PERSON_WORDS = frozenset({  # what describes a person, and is no target for standing first or last
    "ethnicity", "female", "gender", "male", "marital", "married", "race", "sex",
})  # fmt: skip

RATING_WORDS = frozenset({  # a scale that becomes a binary target by a threshold
    "rating", "ratings", "score", "stars",
})  # fmt: skip

TIME_WORDS = frozenset({  # when a row happened
    "at", "created", "date", "datetime", "time", "timestamp", "ts",
})  # fmt: skip

OTHER_TIME_WORDS = frozenset({  # a time other than the row's own
    "birth", "birthday", "birthdate", "born", "dob", "due", "expires", "expiry", "joined", "registered", "registration",
    "release", "released", "signup",
})  # fmt: skip

GROUP_WORDS = frozenset({  # entities whose rows are ranked against each other
    "account", "cookie", "customer", "member", "reader", "session", "uid", "user", "userid", "visitor",
})  # fmt: skip

SEQUENCE_WORDS = frozenset({  # several ids in order
    "hist", "history", "last", "past", "previous", "recent", "seq", "sequence", "session",
})  # fmt: skip

WEIGHT_WORDS = frozenset({  # how much a row counts
    "weight", "weights",
})  # fmt: skip

ID_WORDS = frozenset({  # whole numbers that name something
    "ad", "adid", "ads", "advertiser", "app", "artist", "brand", "browser", "campaign", "cat", "categories",
    "category", "city", "code", "country", "creative", "day", "daytime", "device", "domain", "film", "gender",
    "genre", "hash", "hour", "id", "ids", "item", "key", "language", "month", "movie", "network", "occupation",
    "os", "page", "position", "postal", "product", "publisher", "region", "seller", "sex", "shop", "site", "slot",
    "song", "state", "store", "tag", "tags", "type", "uid", "user", "weekday", "zip",
})  # fmt: skip

QUANTITY_WORDS = frozenset({  # whole numbers that count something
    "affinity", "age", "ago", "amount", "avg", "clicks", "cost", "count", "counts", "days", "distance", "duration",
    "gain", "gains", "height", "hours", "impressions", "length", "loss", "losses", "mean", "minutes", "num",
    "number", "price", "propensity", "qty", "quantity", "rank", "rate", "ratio", "seconds", "since", "size", "sum",
    "total", "views", "wage", "weeks", "width", "year",
})  # fmt: skip


_HEADER_TYPE = re.compile(r"^(.+):(token|token_seq|float|float_seq)$")


def header_type(name: str) -> str | None:
    """Returns the type that a column's name ends in, as in ``user_id:token``; None if it does not."""
    found = _HEADER_TYPE.match(name)
    return None if found is None else found[2]


def plain_name(name: str) -> str:
    """Returns a column's name without the type that it may end in."""
    found = _HEADER_TYPE.match(name)
    return name if found is None else found[1]


NAMING_WORDS = frozenset({"code", "hash", "id", "ids", "key"})
"""Words that say at the end of a name that its values name something, whatever words are before them."""


def words(name: str) -> frozenset[str]:
    """Splits a column's name into words: ``userId`` and ``user_id`` -> {user, id}; a type at its end is left out."""
    return frozenset(_in_order(name))


def last_word(name: str) -> str:
    """Returns the last of a name's words, or an empty text."""
    return (_in_order(name) or [""])[-1]


def _in_order(name: str) -> list[str]:
    separated = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", plain_name(name))
    return [word for word in re.split(r"[^a-z0-9]+", separated.lower()) if word]


def format_number(value: float) -> str:
    """Formats a number for messages: thousands separators from 10,000 on, four significant digits for fractions."""
    return (
        f"{value:.0f}"
        if value == int(value) and abs(value) < 10_000
        else f"{value:,.0f}"
        if value == int(value)
        else f"{value:.4g}"
    )

"""Infers what kind of label a column of numbers or of events makes: a rate, a quantity, or one event among several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ziggurat.core.schema import ValueType
from ziggurat.data.inference.columns import ColumnProfile
from ziggurat.data.inference.words import GROUP_WORDS, ID_WORDS, QUANTITY_WORDS, RATING_WORDS, format_number, words
from ziggurat.objectives.task import LabelKind

RATE_WORDS = frozenset({"ctr", "cvr", "probability", "prob", "rate", "ratio", "relevance"})
"""Names of labels from 0 to 1, where the numbers are."""

TARGET_WORDS = frozenset({
    "dwell", "gmv", "label", "ltv", "playtime", "revenue", "target", "watch", "watched", "watchtime", "y",
})  # fmt: skip
"""Names of labels that are quantities, where nothing else looks like a label."""

COUNT_WORDS = frozenset({"count", "counts", "listens", "orders", "plays", "playcount", "purchases", "visits"})
"""Names of columns that count what a user did with an item: such rows are positives alone."""

NO_ITEM_WORDS = COUNT_WORDS | QUANTITY_WORDS

EVENT_COLUMN_WORDS = frozenset({"action", "activity", "behavior", "behaviour", "event", "interaction"})
"""Names of columns that say what happened."""

EVENTS = (
    "purchase", "purchased", "buy", "bought", "order", "transaction", "conversion", "convert", "install", "checkout",
    "addtocart", "add_to_cart", "cart", "fav", "favorite", "favourite", "like", "share", "follow", "play", "watch",
    "click", "clicked", "clk",
)  # fmt: skip
"""Events that a user does on purpose, the rarest kinds first."""

SHOWN = ("impression", "impressions", "imp", "show", "shown", "exposure", "exposed", "view", "viewed", "pv", "none")
"""Events that precede them: most of the rows, which are the negatives."""

MOST_EVENTS = 30
"""The most different values of a column of events."""

MOST_COUNT = 100_000
"""The largest whole number that a count is taken to be."""


@dataclass(frozen=True, slots=True)
class InferredLabel:
    """A target: a column of 0 and 1, made binary by ``at_least`` or ``equals``, or a rate or number by its ``kind``.

    Attributes:
        profile: the column; of events out of trials, that of the events.
        reason: why it is the label, and why of this kind.
        name: the label's name; None for the column's.
        trials: the column of trials, of a rate of events.
        loss: the loss of a quantity; None for squared errors.
    """

    profile: ColumnProfile
    reason: str
    at_least: float | None = None
    equals: str | int | None = None
    kind: LabelKind = "binary"
    name: str | None = None
    trials: ColumnProfile | None = None
    loss: str | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the label is made from, which must not be features."""
        return (self.profile.name,) if self.trials is None else (self.profile.name, self.trials.name)


def is_rating(profile: ColumnProfile) -> bool:
    """Whether a column is a rating by its name, of few values."""
    named = words(profile.name) & RATING_WORDS
    return bool(named) and profile.numeric and not profile.many and 3 <= profile.distinct <= 100


def is_rate(profile: ColumnProfile) -> bool:
    """Whether a column holds numbers from 0 to 1 that are not all 0 or 1."""
    return _is_number(profile) and profile.distinct > 2 and profile.minimum >= 0 and profile.maximum <= 1


def is_id_by_name(profile: ColumnProfile) -> bool:
    """Whether the name of a column of whole numbers is that of ids, and not of a quantity."""
    named = words(profile.name)
    whole = profile.type is ValueType.INTEGER and not profile.many
    return whole and bool(named & (GROUP_WORDS | ID_WORDS)) and not named & (QUANTITY_WORDS | RATING_WORDS)


def as_number(profile: ColumnProfile, reason: str) -> InferredLabel:
    """Returns a label of a column of more than two numbers: a rate if they are from 0 to 1, else a quantity."""
    span = f"{format_number(profile.minimum)} … {format_number(profile.maximum)}"
    if is_rate(profile):
        return InferredLabel(profile, f"{reason}; from 0 to 1: a rate, learnt by cross-entropy", kind="soft")
    label = InferredLabel(profile, f"{reason}; a quantity, {span}, learnt by squared error", kind="regression")
    repeats = profile.distinct < 0.95 * profile.rows
    zero_heavy = repeats and profile.minimum == 0 and bool(profile.common) and _is_zero(profile.common[0])
    if is_count(profile):
        return replace(label, reason=f"{reason}; a count, {span}, learnt by the Poisson loss", loss="poisson")
    if zero_heavy:
        return replace(
            label,
            reason=f"{reason}; an amount that is most often 0, up to {format_number(profile.maximum)}: Tweedie loss",
            loss="tweedie",
        )
    if profile.minimum >= 0 and profile.maximum > 10 * max(profile.median, 1e-9):
        offered = "loss: {name: log1p} counts relative errors, {name: quantile} predicts quantiles"
        return replace(label, reason=f"{label.reason}; {offered}")
    return label


def is_count(profile: ColumnProfile) -> bool:
    """Whether a column counts something: whole numbers from 0 or 1 on."""
    whole = profile.type is ValueType.INTEGER and not profile.many and not profile.is_temporal
    return whole and profile.minimum in {0, 1} and profile.distinct > 2 and profile.maximum <= MOST_COUNT


def find_number(profiles: Sequence[ColumnProfile]) -> InferredLabel | None:
    """Returns a label of numbers that is found by names: events out of trials, a rate, a quantity; None if none is."""
    whole = [each for each in profiles if each.type is ValueType.INTEGER and not each.many and each.minimum >= 0]
    named = {word: profile for profile in whole for word in words(profile.name) if profile.distinct > 2}
    events = next((named[word] for word in ("clicks", "purchases", "conversions") if word in named), None)
    trials = next((named[word] for word in ("impressions", "shows", "exposures", "views") if word in named), None)
    if events is not None and trials is not None and events.maximum <= trials.maximum:
        reason = f"the share of {trials.name} with {events.name}, each row counted by its {trials.name}"
        return InferredLabel(events, reason, kind="soft", name="rate", trials=trials)
    for profile in profiles:
        if words(profile.name) & RATE_WORDS and is_rate(profile):
            return as_number(profile, "its name")
    for profile in profiles:
        if words(profile.name) & TARGET_WORDS and _is_number(profile) and profile.distinct > 2 and not profile.missing:
            return as_number(profile, "its name")
    return None


def find_event(profiles: Sequence[ColumnProfile]) -> InferredLabel | None:
    """Returns a label of the rows with one event of a column of events; None if there is no such column.

    The positive event is the one furthest from being shown; where rows were shown alone, it is a click if there is one.
    """
    for profile in profiles:
        if profile.many or profile.type is not ValueType.TEXT or not 2 <= profile.distinct <= MOST_EVENTS:
            continue
        held = {str(value).strip().lower(): str(value) for value in profile.common}
        known = [event for event in EVENTS if event in held]
        base = [event for event in SHOWN if event in held]
        if not known or not (base or words(profile.name) & EVENT_COLUMN_WORDS):
            continue
        clicks = [event for event in known if event in {"click", "clicked", "clk"}]
        impressions = any(event in held for event in SHOWN[:7])
        chosen = clicks[0] if clicks and impressions else known[0]
        others = ", ".join(value for event, value in held.items() if event != chosen)
        reason = f"one event of {profile.name!r}: {held[chosen]} beside {others}; another event can be the label"
        return InferredLabel(profile, reason, equals=held[chosen], name=held[chosen].strip())
    return None


def missing_negatives(profiles: Sequence[ColumnProfile]) -> tuple[str, str] | None:
    """Returns what a log of positives alone lacks, and what to do; None if it is no such log.

    Such a log has a user, an item, and nothing that could say what a user did not do.
    """
    ids = [profile for profile in profiles if not profile.many and profile.type is not ValueType.FLOAT]
    user = next((profile for profile in ids if words(profile.name) & GROUP_WORDS), None)
    items = [
        profile
        for profile in ids
        if profile is not user and profile.time_format is None and not words(profile.name) & NO_ITEM_WORDS
    ]
    named = [profile for profile in items if words(profile.name) & (ID_WORDS | {"item", "artist", "track", "product"})]
    item = (named or items or [None])[0]
    if user is None or item is None or item.distinct < 3:
        return None
    sampled = (
        "sample the negatives, which are items that a user has no row with: in `data` write "
        f"`labels: [{{name: seen, observed: true}}]` and `negatives: {{name: uniform, user: {user.name}, item: "
        f"{item.name}}}`"
    )
    counted = next(
        (each for each in profiles if is_count(each) and words(each.name) & COUNT_WORDS and each not in (user, item)),
        None,
    )
    if counted is None:
        return "each row seems to be a positive: nothing says what a user did not do", sampled
    return (
        f"each row seems to be a positive, with a count in {counted.name!r}: nothing says what a user did not do",
        f"predict the count, by `ziggurat init FILES --label {counted.name}` (Poisson regression); or {sampled}",
    )


def _is_number(profile: ColumnProfile) -> bool:
    return profile.numeric and not profile.many and not profile.is_temporal


def _is_zero(value: object) -> bool:
    try:
        return float(str(value)) == 0
    except ValueError:
        return False

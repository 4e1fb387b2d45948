"""Renders the experiment of ``ziggurat init``: the inferred config as YAML, with the reasons as comments."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePath

from ziggurat.cli.drafts.defaults import encoder, learnable, model_lines, transforms
from ziggurat.cli.drafts.files import listed_files
from ziggurat.cli.drafts.recurrence import PairOfIds
from ziggurat.core.errors import INVISIBLE
from ziggurat.core.schema import ValueType
from ziggurat.data.inference.columns import ZERO_DATE
from ziggurat.data.inference.labels import InferredLabel
from ziggurat.data.inference.roles import Inference, InferredFeature
from ziggurat.data.inference.sample import LogSample
from ziggurat.data.inference.words import plain_name
from ziggurat.data.readers.csv.reader import WHITESPACE
from ziggurat.data.readers.source_files import UTF_8
from ziggurat.data.readers.urls import UrlPath

_RESERVED = frozenset(["y", "n", "yes", "no", "true", "false", "on", "off", "null", "none", "~"])
_UNPRINTABLE = re.compile("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""What YAML allows in quotes as an escape alone, and what ends its lines besides line feeds."""

_CLOCK = re.compile(r"\s*\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[AaPp][Mm])?\s*", re.ASCII)
"""A time of day."""

_LISTED_LABELS = 10
_TIME_PARTS = {
    "hour": "offered: the hour of the day, UTC; try whether it helps",
    "weekday": "offered: the weekday, UTC; try whether it helps",
    "age": "offered: the age of the log; in a split by time, rows after training count as its newest",
}


def render(found: Inference, name: str, folder: PurePath, schema: str | None = None) -> str:
    """Returns the YAML text; file names are relative to ``folder``."""
    text = "\n".join(_lines(found, name, folder, schema)) + "\n"
    return _UNPRINTABLE.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def _lines(found: Inference, name: str, folder: PurePath, schema: str | None) -> Iterator[str]:
    if schema is not None:
        yield f"# yaml-language-server: $schema={schema}"
    yield "# Inferred from the data by `ziggurat init`, with reasons. It can be trained as it is; review it first."
    yield f"name: {scalar(name)}"
    yield "data:"
    if found.sample.format != "frame":
        meaning = "" if isinstance(folder, UrlPath) else "relative to the working directory; "
        yield f"  folder: {scalar(str(folder))}  # {meaning}--data FOLDER replaces it"
    yield from _source(found, folder)
    yield from _split(found, folder)
    reasons = [*_bad_rows(found)]
    if reasons:
        yield f"  on_bad_row: quarantine  # {'; '.join(reasons)}: such rows go to quarantine.jsonl"
    else:
        yield "  on_bad_row: fail  # or quarantine: set the row aside in quarantine.jsonl, with the reason"
    for feature in found.features:
        if feature.profile.non_numeric_cells:
            odd = ", ".join(repr(cell) for cell in feature.profile.non_numeric_cells)
            yield f"  # {feature.profile.name}: numbers except {odd}; to read it as numbers, add these to null_values"
    yield "  labels:"
    for label in found.labels:
        yield f"    - {_label(label)}  # {label.reason}"
    if found.other_labels:
        listed = ", ".join(found.other_labels[:_LISTED_LABELS])
        more = f" and {len(found.other_labels) - _LISTED_LABELS} more" * (len(found.other_labels) > _LISTED_LABELS)
        yield f"  # further columns of 0 and 1 that may be labels: {listed}{more}"
    yield f"  weight: null{_weight_hint(found)}"
    yield from _group_and_time(found)
    learned = learnable(found)
    yield from _features(found, learned.crossed)
    yield from model_lines(found, learned)
    yield _slices(found)


def _bad_rows(found: Inference) -> Iterator[str]:
    """Yields which of the rows cannot be used, and why."""
    unreadable = found.sample.unreadable.count
    if unreadable:
        yield f"{unreadable:,} of {found.sample.examined:,} rows cannot be read"
    unlabelled = max(label.profile.missing for label in found.labels)
    if unlabelled:
        yield f"{unlabelled:.2%} of the rows have no label"
    if found.time is not None and found.time.missing:
        yield f"{found.time.missing:.2%} of the rows have no {found.time.name}, which splits them"


def _source(found: Inference, folder: PurePath) -> Iterator[str]:
    sample = found.sample
    rows = "rows unknown" if sample.total_rows is None else f"{sample.total_rows:,} rows"
    examined = "all examined" if sample.complete else f"a sample of {sample.examined:,} examined"
    if sample.unreadable.count:
        examined += f"; {sample.unreadable.count:,} cannot be read: {sample.unreadable.first}"
    yield f"  source:  # {'' if sample.complete or sample.total_rows is None else 'about '}{rows}, {examined}"
    yield f"    name: {sample.format}"
    if sample.format != "frame":
        yield f"    files: {_flow(listed_files(found.files['train'], folder))}"
    if sample.table is not None:
        yield f"    table: {scalar(sample.table)}  # or query: SELECT …"
    if sample.records != "lines":
        what = {"array": "one JSON array of objects", "python": "Python literals, not JSON, one a line"}[sample.records]
        yield f"    records: {sample.records}  # {what}"
    yield from _text_form(sample, found.layout)
    if sample.columns is not None:
        yield f"    columns: {_flow(list(sample.columns))}  # invented names: rename them here and below"
    if sample.numeric:
        names = _flow(list(sample.numeric)) if sample.columns else f"[{', '.join(sample.numeric)}]"
        yield f"    numeric: {names}  # {'fields' if sample.columns else 'indices'} with values other than 1"
        yield "    absent: zero  # values that a row leaves out are 0, as in libsvm; or missing"
    used = [feature.profile for feature in found.features if feature.kind] + [
        each for label in found.labels for each in (label.profile, label.trials) if each is not None
    ]
    timed = [*found.incomplete_times, *([] if found.time is None else [found.time])]
    null_words = sorted({word for profile in [*used, *timed] for word in profile.null_words})
    if null_words:
        zeros = any(re.match(ZERO_DATE, word) for word in null_words)
        reason = "texts that mean missing" + "; a date of zeros is none" * zeros
        yield f"    null_values: {_flow(['', *null_words], quote=True)}  # {reason}"
    if any(profile.nan for profile in used):
        yield "    nan_is_missing: true"
    if any(profile.infinity for profile in used):
        yield "    infinity_is_missing: true"
    yield from _numbers(found)


def _numbers(found: Inference) -> Iterator[str]:
    """Yields how the source writes numbers, where that is unusual."""
    rules, examples = found.numbers, [feature.profile for feature in found.features if feature.profile.number_ways]
    example = next((profile.example for profile in examples if profile.numeric), "")
    if rules.decimal != ".":
        yield f"    decimal: {json.dumps(rules.decimal)}  # numbers such as {example}"
    if rules.thousands:
        yield f"    thousands: {json.dumps(rules.thousands)}  # numbers such as {example}"
    if rules.symbols:
        meaning = "; a per cent is a hundredth" if "%" in rules.symbols else ""
        yield f"    symbols: {_flow(list(rules.symbols), quote=True)}  # signs around numbers{meaning}"
    if rules.parentheses:
        yield "    negative: parentheses  # numbers in parentheses are negative"


def _text_form(sample: LogSample, layout: str | None) -> Iterator[str]:
    """Yields how text is written, where that differs from the usual way; of CSV also the delimiter and the header."""
    found, dialect = sample.encoding, sample.dialect
    if found.name != UTF_8:
        told = "told by the byte order mark" if found.marked else "guessed from the bytes"
        doubt = f"; if values look wrong, try {found.runner_up}" if found.runner_up else ""
        yield f"    encoding: {found.name}  # {told}{doubt}"
    if found.valid_lines:
        valid, others = f"{found.valid_lines:,}", f"{found.other_lines:,}"
        yield f"    # two encodings: of the sampled lines beyond ASCII {valid} are valid UTF-8 and {others} are not, so"
        yield "    # that one word in both becomes two ids: write the whole file in UTF-8, and leave `encoding` out"
    if found.lone_returns:
        yield "    line_ends: cr  # lines end in carriage returns alone"
    if sample.format != "csv":
        return
    delimiter = json.dumps(dialect.delimiter.decode(), ensure_ascii=False)
    yield f"    delimiter: {delimiter if dialect.delimiter else f'{WHITESPACE}  # runs of blanks and tabs'}"
    known = f"  # the columns of {layout}" if sample.header and layout else ""
    yield f"    header: {str(sample.header).lower()}{known}"
    if sample.renamed:
        names = f"the layout of {layout}" if layout and not sample.header else _origin(sample)
        yield f"    columns: {_flow(sample.frame.columns)}  # {names}"
    if dialect.skip_blanks:
        yield "    skip_blanks: true  # blanks beside delimiters are no part of the values"
    if not dialect.quotes:
        yield "    quotes: false  # quotes are ordinary characters here"
    if dialect.escape:
        yield f"    escape: {json.dumps(dialect.escape.decode())}  # before quotes and delimiters within values"
    if dialect.comment:
        yield f"    comment: {json.dumps(dialect.comment.decode())}  # lines that begin with it are left out"
    if dialect.skip_lines:
        yield f"    skip_lines: {dialect.skip_lines}  # titles before the header"
    if dialect.newlines_in_values:
        yield "    newlines_in_values: true"


def _origin(sample: LogSample) -> str:
    """Says where the names of the columns are from."""
    if sample.header:
        return "the header has no name for one of them: rename it here and below"
    invented = all(re.fullmatch(r"column_\d+", name) for name in sample.frame.columns)
    if not invented and sample.dialect.comment:
        return "named in a comment line"
    return "invented names: rename them here and below"


def _split(found: Inference, folder: PurePath) -> Iterator[str]:
    match found.split.name:
        case "files":
            held_out = found.files["validation"]
            validation = _flow(listed_files(held_out, folder)) if held_out else "0.1"
            test = _flow(listed_files(found.files["test"], folder))
            settings = f"name: files, validation: {validation}, test: {test}"
        case "time_within_key":
            assert found.group is not None
            settings = f"name: time_within_key, key: {scalar(found.group.name)}, validation: 0.1, test: 0.1"
        case "time":
            settings = "name: time, validation: 0.1, test: 0.1"
        case "random":
            settings = "name: random, validation: 0.1, test: 0.1, seed: 0"
    yield f"  split: {{{settings}}}  # {found.split.reason}"


def _group_and_time(found: Inference) -> Iterator[str]:
    if found.group is not None:
        yield f"  group: {scalar(found.group.name)}  # for GAUC: the ranking within each {found.group.name}"
    else:
        yield "  group: null  # no column looks like a user whose rows are ranked; name one, for GAUC"
    if found.time is not None:
        yield f"  time: {scalar(found.time.name)}"
        stated = found.time.numeric or "not converted" in found.time.time_note
        zone = "" if stated else "; UTC where no zone is written"
        written = str(found.time.time_format)
        written = json.dumps(written, ensure_ascii=False) if "%" in written else written
        yield f"  time_format: {written}  # {found.time.time_note}{zone}{_clocks(found)}"
    else:
        holes = "".join(f"; {each.name} has none in {each.missing:.1%} of the rows" for each in found.incomplete_times)
        profiles = (feature.profile for feature in found.features)
        holes += "".join(f"; {each.name}: {each.unread_time}" for each in profiles if each.unread_time)
        yield f"  time: null  # no column has a time in each row{holes}; name one and its time_format to split by time"


def _clocks(found: Inference) -> str:
    """Says which columns hold times of day beside a time that has none."""
    if "hour" in found.time_parts:
        return ""
    profiles = [feature.profile for feature in found.features]
    clocks = [
        each.name for each in profiles if each.common and all(_CLOCK.fullmatch(str(cell)) for cell in each.common)
    ]
    return "".join(
        f"; the times of day in {name} are not used: write both in one column to order the rows of a day"
        for name in clocks
    )


def _features(found: Inference, pair: PairOfIds | None) -> Iterator[str]:
    yield "features:  # leave out what is known only after the label: it would leak"
    owners = {feature.table for feature in found.features if feature.table}
    names = unique_names([feature.profile.name for feature in found.features])
    for feature in found.features:
        text = _feature(feature, names, shared=feature.profile.name in owners)
        note = found.sample.notes.get(feature.profile.name)
        comment, reason = (each + (f"; {note}" if note else "") for each in (_comment(feature), feature.reason))
        yield f"  - {text}  # {comment}" if feature.kind else f"  # - {text}  # left out: {reason}"
        if feature.doubt:
            yield f"  # - {_other_way(feature, names)}  # offered beside it: {feature.doubt}"
        if feature.kind == "sequence" and feature.table is not None:
            target = scalar(names[feature.table])
            pooling = f"pooling: {{name: target_attention, target: {target}}}"
            yield f"  #   to attend to it from {target}, add: {pooling}"
    for column, reason in found.sample.left_out.items():
        yield f"  # - {{column: {scalar(column)}}}  # left out: {' '.join(reason.split())}"
    yield from _crosses(found, pair)
    yield from _time_features(found)


def _crosses(found: Inference, pair: PairOfIds | None) -> Iterator[str]:
    """Yields the feature of pairs of ids that recur."""
    if pair is None:
        return
    name = feature_name("_x_".join(map(plain_name, pair.columns)))
    if name not in {feature_name(feature.profile.name) for feature in found.features}:
        columns = ", ".join(map(scalar, pair.columns))
        yield (
            f"  - {{name: {scalar(name)}, kind: crossed, columns: [{columns}]}}"
            f"  # {pair.recurring:.0%} of the rows have a pair of these that an earlier row has, which tells "
            f"{pair.tells:.0%} of the label's variance beyond either alone"
        )


def _time_features(found: Inference) -> Iterator[str]:
    """Yields the features that can be made of the time of the row."""
    if found.time is None:
        return
    column = found.time.name
    taken = {feature_name(feature.profile.name) for feature in found.features}
    for part in found.time_parts:
        name = "hour_of_day" if column == part == "hour" else feature_name(f"{plain_name(column)}_{part}")
        if name in taken:
            continue
        encoding = "" if part == "age" else ", as: categorical"
        text = f"{{name: {scalar(name)}, kind: time, column: {scalar(column)}, part: {part}{encoding}}}"
        yield f"  # - {text}  # {_TIME_PARTS[part]}"


def _comment(feature: InferredFeature) -> str:
    missing = feature.profile.missing
    return feature.reason + (f"; {missing:.0%} missing" if missing >= 0.005 else "")


def _feature(feature: InferredFeature, names: Mapping[str, str], shared: bool) -> str:
    profile = feature.profile
    name = names[profile.name]
    parts = [f"name: {scalar(name)}", f"kind: {feature.kind or ('numeric' if profile.numeric else 'categorical')}"]
    if name != profile.name:
        parts.append(f"column: {scalar(profile.name)}")
    if feature.kind == "vector":
        parts.append(f"length: {profile.vector}, transforms: [{{name: fill, value: 0}}, {{name: standardise}}]")
    elif feature.kind == "numeric":
        parts.append(f"transforms: [{', '.join(transforms(profile))}]")
    elif feature.kind is not None:
        if profile.type is ValueType.INTEGER:
            parts.append("type: integer")
        if profile.delimiter is not None:
            parts.append(f"delimiter: {json.dumps(profile.delimiter)}")
        if profile.brackets:
            parts.append("brackets: true")
        if feature.kind == "sequence":
            parts.append(f"last: {min(50, max(1, profile.longest))}")
        if feature.table is not None:
            parts.append(f"table: {scalar(names[feature.table])}")
        else:
            parts.append(f"encoder: {encoder(profile, shared)}")
    return f"{{{', '.join(parts)}}}"


def _other_way(feature: InferredFeature, names: dict[str, str]) -> str:
    """Returns the feature that reads a column of ids as a quantity, or one of quantities as ids."""
    column = feature.profile.name
    kind, ending = ("categorical", "id") if feature.kind == "numeric" else ("numeric", "number")
    name = names[column]
    while name in names.values():
        name = f"{name}_{ending}"
    return _feature(replace(feature, kind=kind), {**names, column: name}, shared=False)


def _slices(found: Inference) -> str:
    few = [f for f in found.features if f.kind == "categorical" and 2 <= f.profile.distinct <= 10]
    slices = [feature for feature in few if feature.profile is not found.group]
    names = unique_names([feature.profile.name for feature in found.features])
    chosen = _flow([names[feature.profile.name] for feature in slices[:2]])
    return f"evaluation: {{slices: {chosen}}}  # categorical features for whose values metrics are reported separately"


def _label(label: InferredLabel) -> str:
    name = feature_name(label.name or label.profile.name)
    parts = [f"name: {scalar(name)}"]
    if label.trials is not None:
        columns = f"positives: {scalar(label.profile.name)}", f"trials: {scalar(label.trials.name)}"
        parts += [f"kind: {label.kind}", *columns]
        return f"{{{', '.join(parts)}}}"
    if name != label.profile.name:
        parts.append(f"column: {scalar(label.profile.name)}")
    if label.kind != "binary":
        parts.append(f"kind: {label.kind}")
    if label.loss is not None:
        parts.append(f"loss: {{name: {label.loss}}}")
    if label.at_least is not None:
        parts.append(f"at_least: {label.at_least:g}")
    elif label.equals is not None:
        parts.append(f"equals: {json.dumps(label.equals, ensure_ascii=False)}")
    return f"{{{', '.join(parts)}}}"


def _weight_hint(found: Inference) -> str:
    return f"  # column of example weights; {', '.join(found.weights)} may be one" if found.weights else ""


def _flow(items: list[str], quote: bool = False) -> str:
    return f"[{', '.join(json.dumps(item, ensure_ascii=False) if quote else scalar(item) for item in items)}]"


def unique_names(columns: Sequence[str]) -> dict[str, str]:
    """Returns a name for the feature of each column; those that :func:`feature_name` makes equal get numbers."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for column in columns:
        name, number = feature_name(column), 1
        while name in taken:
            number += 1
            name = f"{feature_name(column)} {number}"
        taken.add(name)
        names[column] = name
    return names


def feature_name(column: str) -> str:
    """Returns the column's name with characters replaced that a feature's name may not have."""
    named = plain_name(column)
    visible = "".join("/" if unicodedata.category(each) in INVISIBLE else each for each in named)
    plain = re.sub(r"[./\\:]+", "_", visible).strip().lstrip("@")
    return plain.encode()[:200].decode(errors="ignore") or "column"


def scalar(text: str) -> str:
    """Formats a YAML string: plain if that is safe within brackets, else in double quotes."""
    if re.fullmatch(r"[A-Za-z_./][\w./-]*( [\w./-]+)*", text) and text.lower() not in _RESERVED:
        return text
    return json.dumps(text, ensure_ascii=False)

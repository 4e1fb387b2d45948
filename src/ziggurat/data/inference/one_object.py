"""Recognises a JSON file that is one object around a log.

It holds the rows in a list, a list for each column, or the rows as lists beside a list of the columns' names.
"""

from __future__ import annotations

import json
from typing import Any, cast

from ziggurat.core.errors import DataError
from ziggurat.data.inference.text_sample import TextPart


def refuse_one_object(whole: TextPart) -> None:
    """Raises an error that names the log within a file that is one object; does nothing if it is none, or a row.

    Raises:
        DataError: the file is one object around a log.
    """
    try:
        value = json.loads(whole.data)
    except (ValueError, RecursionError):
        return
    if not isinstance(value, dict):
        return
    held = cast("dict[str, Any]", value)
    rows = [key for key, each in held.items() if isinstance(each, list) and _are_objects(cast("list[Any]", each))]
    if rows:
        longest = max(rows, key=lambda key: len(held[key]))
        others = f" (of {', '.join(f'`{key}`' for key in rows)})" if len(rows) > 1 else ""
        raise DataError(
            f"{whole.file}: one object; its list `{longest}`{others} is the log",
            f"write that list alone: jq '.[{json.dumps(longest)}]' '{whole.file}' > log.json",
        )
    _refuse_split(whole, held)
    sizes = {len(cast("list[Any]", each)) for each in held.values() if isinstance(each, list | dict)}
    columns = [key for key, each in held.items() if isinstance(each, list | dict)]
    if len(columns) == len(held) and len(columns) > 1 and len(sizes) == 1 and max(sizes) > 1:
        raise DataError(
            f"{whole.file}: one object of {len(columns):,} columns ({', '.join(columns[:8])}), each with the values of "
            f"{max(sizes):,} rows; rows are read as one object each",
            f"write rows: import pandas; {_pandas(whole)}",
        )


def _refuse_split(whole: TextPart, held: dict[str, Any]) -> None:
    """Raises an error if a list holds the rows as lists, and another one the names of the columns, as pandas splits."""
    for key, rows in held.items():
        if not isinstance(rows, list) or len(cast("list[Any]", rows)) < 2:
            continue
        widths = {len(cast("list[Any]", row)) if isinstance(row, list) else -1 for row in cast("list[Any]", rows)}
        if len(widths) != 1 or -1 in widths:
            continue
        width = widths.pop()
        names = next((name for name, each in held.items() if _are_names(each) and len(each) == width), None)
        if names is None:
            continue
        zipped = "[$names, .] | transpose | map({(.[0]): .[1]}) | add"
        by_jq = (
            f"jq -c '.[{json.dumps(names)}] as $names | .[{json.dumps(key)}][] | {zipped}' '{whole.file}' > log.jsonl"
        )
        by_pandas = f"import pandas; {_pandas(whole, 'split')}"
        raise DataError(
            f"{whole.file}: one object, with the rows as lists in `{key}` and the names of their {width:,} columns in "
            f"`{names}`; rows are read as one object each",
            f"write rows: {by_pandas if (names, key) == ('columns', 'data') else by_jq}",
        )


def _are_names(each: Any) -> bool:
    return isinstance(each, list) and bool(each) and all(isinstance(name, str) for name in cast("list[Any]", each))


def _pandas(whole: TextPart, orient: str = "") -> str:
    """Returns the statement that writes rows of such a file."""
    named = f", orient={orient!r}" if orient else ""
    return f"pandas.read_json({str(whole.file)!r}{named}).to_json('log.jsonl', orient='records', lines=True)"


def _are_objects(items: list[Any]) -> bool:
    return len(items) > 1 and all(isinstance(item, dict) for item in items)

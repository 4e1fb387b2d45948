"""Recognises a JSON file that is one object around a log: with the rows in a list, or with a list for each column."""

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
    sizes = {len(cast("list[Any]", each)) for each in held.values() if isinstance(each, list | dict)}
    columns = [key for key, each in held.items() if isinstance(each, list | dict)]
    if len(columns) == len(held) and len(columns) > 1 and len(sizes) == 1 and max(sizes) > 1:
        raise DataError(
            f"{whole.file}: one object of {len(columns):,} columns ({', '.join(columns[:8])}), each with the values of "
            f"{max(sizes):,} rows; rows are read as one object each",
            "write rows: import pandas; "
            f"pandas.read_json({str(whole.file)!r}).to_json('log.jsonl', orient='records', lines=True)",
        )


def _are_objects(items: list[Any]) -> bool:
    return len(items) > 1 and all(isinstance(item, dict) for item in items)

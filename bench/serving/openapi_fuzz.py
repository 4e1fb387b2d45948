"""Schemathesis over a server's OpenAPI document: `python -m bench.serving.openapi_fuzz PORT EXAMPLES [TOKEN]`.

Prints a line for each status: the status and how many answers had it. 999 counts the failures of Schemathesis' checks:
an answer that the document does not describe, of another type or another schema, or an error of the server but 503.
Path parameters name the model in every other request, which nearly no drawn name does.
"""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from typing import Any

import hypothesis
import schemathesis
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode, checks

_NAME = "shop"


def fuzz(port: int, examples: int, token: str = "", name: str = _NAME) -> tuple[Counter[int], list[str]]:
    """Returns the answers by status, and the failures that Schemathesis names."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    library: Any = schemathesis
    schema = library.openapi.from_url(f"http://127.0.0.1:{port}/openapi.json", headers=headers)
    statuses, failures = Counter[int](), list[str]()
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            _fuzz(operation, mode, examples, headers, name, statuses, failures)
    return statuses, failures


def _fuzz(
    operation: Any,
    mode: Any,
    examples: int,
    headers: dict[str, str],
    name: str,
    statuses: Counter[int],
    failures: list[str],
) -> None:
    checked = [
        checks.CHECKS.get_one(each)
        for each in ("status_code_conformance", "content_type_conformance", "response_schema_conformance")
    ]

    @hypothesis.settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        suppress_health_check=tuple(hypothesis.HealthCheck),  # pyright: ignore[reportArgumentType]
        phases=[hypothesis.Phase.generate],
    )
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def each(case: Any) -> None:
        if sum(statuses.values()) % 2 and "name" in case.path_parameters:
            case.path_parameters["name"] = name
        response = case.call(headers=headers)
        statuses[response.status_code] += 1
        if response.status_code >= 500 and response.status_code != 503:
            failures.append(f"{operation.method} {operation.path}: {response.status_code} {response.text[:300]}")
        try:
            case.validate_response(response, checks=checked)
        except BaseExceptionGroup as group:
            failures.extend(f"{operation.method} {operation.path}: {str(one)[:600]}" for one in group.exceptions)

    with contextlib.suppress(Unsatisfiable):  # nothing that is wrong can be sent to a path without parameters
        each()


def main() -> None:
    statuses, failures = fuzz(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
    for status, count in sorted(statuses.items()):
        print(status, count)
    if failures:
        print(999, len(failures))
        print("\n".join(failures[:20]), file=sys.stderr)


if __name__ == "__main__":
    main()

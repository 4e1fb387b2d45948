"""The positive one of two words in a label column."""

from __future__ import annotations

import pytest

from ziggurat.data.inference.binary_label_words import positive_value


@pytest.mark.parametrize(
    ("values", "positive"),
    [
        (["yes", "no"], "yes"),
        (["N", "Y"], "Y"),
        (["False", "True"], "True"),
        (["no_click", "click"], "click"),
        (["click", "no-click"], "click"),
        (["Not bought", "Bought"], "Bought"),
        (["a", "b"], None),
        (["yes", "click"], None),
        ([" no", " yes"], " yes"),
        (["no"], "yes"),
        (["No"], "Yes"),
        (["TRUE"], "TRUE"),
        (["no_click"], "click"),
        (["red"], None),
        (["no_"], None),
    ],
)
def test_the_positive_value(values: list[str], positive: str | None) -> None:
    assert positive_value(values) == positive

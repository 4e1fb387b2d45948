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
        (["nein", "ja"], "ja"),
        (["Ja", "Nej"], "Ja"),
        (["OUI", "NON"], "OUI"),
        (["N", "S"], "S"),
        (["si", "no"], "si"),
        (["no", "si\u0301"], "si\u0301"),
        (["Não", "Sim"], "Sim"),
        (["nie", "tak"], "tak"),
        (["нет", "да"], "да"),
        (["いいえ", "はい"], "はい"),
        (["否", "是"], "是"),
        (["아니요", "예"], "예"),
        (["evet", "hayır"], "evet"),
        (["faux", "vrai"], "vrai"),
        (["gekauft", "nicht gekauft"], "gekauft"),
        (["sin_click", "click"], "click"),
        (["ja", "no"], None),
        (["a", "b"], None),
        (["yes", "click"], None),
        ([" no", " yes"], " yes"),
        (["no"], "yes"),
        (["No"], "Yes"),
        (["TRUE"], "TRUE"),
        (["no_click"], "click"),
        (["red"], None),
        (["no_"], None),
        (["nein"], "ja"),
        (["Нет"], "Да"),
        (["n"], "y"),
    ],
)
def test_the_positive_value(values: list[str], positive: str | None) -> None:
    assert positive_value(values) == positive

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.metrics.exact_sum import ExactSum


def total(values) -> ExactSum:
    made = ExactSum()
    made.add(np.asarray(values, np.float64))
    return made


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True), max_size=30))
def test_equals_the_sum_of_fractions(values):
    found = total(values)
    exact = sum((Fraction(value) for value in values), Fraction(0))
    assert Fraction(found.units, 1 << 1074) == exact
    try:
        assert found.value == float(exact)
    except OverflowError:
        assert math.isinf(found.value)


def test_order_and_splits_do_not_matter():
    rng = np.random.default_rng(0)
    values = rng.normal(size=1000) * 10.0 ** rng.integers(-200, 200, 1000)
    parts = ExactSum()
    for part in np.array_split(rng.permutation(values), 7):
        one = total(part)
        parts.merge(one)
    assert parts == total(values)
    assert parts.value == math.fsum(values)


def test_nothing_is_absorbed():
    assert total([1e300, 1.0, -1e300]).value == 1.0
    assert total([5e-324] * 3).value == 1.5e-323
    assert total([]).value == 0.0

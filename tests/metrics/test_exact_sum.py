from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.metrics.exact_sum import ExactSum


def sum_of(values) -> ExactSum:
    made = ExactSum()
    made.add(np.asarray(values, np.float64))
    return made


@settings(max_examples=200, deadline=None)
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=True), max_size=30))
def test_sum_equals_that_of_fractions(values):
    found = sum_of(values)
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
        one = sum_of(part)
        parts.merge(one)
    assert parts == sum_of(values)
    assert parts.value == math.fsum(values)


def test_small_values_are_not_absorbed_by_large_ones():
    assert sum_of([1e300, 1.0, -1e300]).value == 1.0
    assert sum_of([5e-324] * 3).value == 1.5e-323
    assert sum_of([]).value == 0.0

"""Balancing: compared with brute force and with its lower bound, and kept within capacities."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ziggurat.core.errors import NoFeasiblePlan
from ziggurat.planning.balance import (
    BalanceProblem,
    balanced,
    improved_by_swaps,
    largest_differencing,
    longest_first,
    lower_bound,
    packed,
    prefer_contiguous,
)


def balance_problem(
    costs: list[float], bins: int, sizes: list[float] | None = None, capacity: float = float("inf")
) -> BalanceProblem:
    sizes = sizes if sizes is not None else [0.0] * len(costs)
    return BalanceProblem(costs, sizes, [capacity] * bins, [f"t{i}" for i in range(len(costs))])


def optimum(problem: BalanceProblem) -> float | None:
    """Returns the lowest maximum load over all assignments that fit; None if none fits."""
    found = [
        balance.highest
        for bins in itertools.product(range(len(problem.capacities)), repeat=len(problem.costs))
        if problem.fits(balance := problem.balance(bins))
    ]
    return min(found, default=None)


def test_greedy_takes_the_costliest_first() -> None:
    # 8 → a, 7 → b, 6 → b (7 < 8), 5 → a, 4 → b or a (13 each): a comes first.
    assert longest_first(balance_problem([4, 5, 6, 7, 8], 2)).bins == (0, 0, 1, 1, 0)


def test_largest_differencing_on_its_authors_example() -> None:
    """8, 7, 6, 5, 4 into two bins: 8-7 → 1, 6-5 → 1, 4-1 → 3, 3-1 → 2; so 16 and 14, while greedy has 17 and 13."""
    found = largest_differencing(balance_problem([8, 7, 6, 5, 4], 2))
    assert found is not None
    assert sorted(found.loads) == [14, 16]
    assert longest_first(balance_problem([8, 7, 6, 5, 4], 2)).highest == 17


def test_swaps_find_what_both_methods_miss() -> None:
    assert balanced(balance_problem([8, 7, 6, 5, 4], 2)).highest == 15


def test_three_bins_are_merged_fullest_with_emptiest() -> None:
    found = largest_differencing(balance_problem([5, 5, 4, 4, 3, 3], 3))
    assert found is not None
    assert found.loads == (8, 8, 8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=6), st.integers(1, 3), st.data())
def test_every_method_lies_between_the_optimum_and_its_bound(costs: list[int], bins: int, data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 5), min_size=len(costs), max_size=len(costs)))
    capacity = data.draw(st.integers(3, 20))
    problem = balance_problem([float(cost) for cost in costs], bins, [float(size) for size in sizes], float(capacity))
    best = optimum(problem)
    if best is None:
        with pytest.raises(NoFeasiblePlan):
            balanced(problem)
        return
    found = balanced(problem)  # so few items are packed if they fit at all
    assert problem.fits(found)
    assert found.highest >= best
    assert found.highest <= longest_first(problem).highest
    assert best >= lower_bound(problem.costs, bins) - 1e-9


def test_greedy_without_capacities_keeps_grahams_bound() -> None:
    """Never above 4/3 - 1/(3 k) of the optimum."""
    draw = random.Random(0)
    for _ in range(30):
        bins = draw.choice([2, 3])
        problem = balance_problem([draw.randint(1, 40) for _ in range(6)], bins)
        best = optimum(problem)
        assert best is not None
        assert longest_first(problem).highest <= best * (4 / 3 - 1 / (3 * bins)) + 1e-9


def test_a_hundred_pools_of_tables_are_within_three_percent_of_the_bound() -> None:
    """Costs are long-tailed like those of real tables, for 50 to 200 tables on eight devices."""
    generator = np.random.default_rng(0)
    ratios: list[float] = []
    for _ in range(100):
        costs = generator.lognormal(0, 1.2, generator.integers(50, 200)).tolist()
        ratios.append(balanced(balance_problem(costs, 8)).highest / lower_bound(costs, 8))
    assert max(ratios) <= 1.03
    assert min(ratios) >= 1.0 - 1e-12


def test_capacity_outweighs_balance() -> None:
    """Two large cheap items must be separated, although the loads would be even with them in one bin."""
    problem = balance_problem([1.0, 1.0, 2.0], 2, [6.0, 6.0, 1.0], 10.0)
    found = balanced(problem)
    assert found.bins[0] != found.bins[1]
    assert problem.fits(found)
    assert largest_differencing(problem) is None  # it would put them together


def test_items_go_by_size_if_going_by_cost_leaves_one_over() -> None:
    """By cost, the two small items go to different bins and leave no bin for the large one."""
    problem = balance_problem([3.0, 3.0, 1.0], 2, [4.0, 4.0, 9.0], 10.0)
    assert longest_first(problem).bins in {(0, 0, 1), (1, 1, 0)}


def test_an_item_that_fits_nowhere_is_named_with_its_bytes() -> None:
    problem = BalanceProblem([1.0, 2.0], [5.0, 50.0], [10.0, 20.0], ["small", "huge"])
    with pytest.raises(NoFeasiblePlan, match=r"huge needs 50 bytes .* all items need 55 bytes, the 2 devices have 30"):
        balanced(problem)


def test_swaps_never_worsen_nor_break_a_capacity() -> None:
    draw = random.Random(1)
    for _ in range(40):
        n, bins = draw.randint(3, 30), draw.randint(2, 6)
        costs, sizes = [draw.expovariate(1) for _ in range(n)], [draw.random() for _ in range(n)]
        problem = BalanceProblem(costs, sizes, [sum(sizes) / bins * 1.5 + 1] * bins, [str(i) for i in range(n)])
        start = longest_first(problem)
        after = improved_by_swaps(problem, start)
        assert after.highest <= start.highest
        assert problem.fits(after)
        again = improved_by_swaps(problem, after)
        assert again == after


def test_no_items() -> None:
    assert balanced(balance_problem([], 3)).loads == (0.0, 0.0, 0.0)
    assert lower_bound([], 3) == 0.0


def test_initial_loads_count() -> None:
    """Bins have initial loads of 6, 0 and 3; items cost 4, 4, 3, 1. The even load of 7 can be reached."""
    problem = BalanceProblem([4, 4, 3, 1], [0.0] * 4, [1.0] * 3, list("abcd"), [6, 0, 3])
    assert longest_first(problem).loads == (7, 7, 7)  # 4 → 1, 4 → 2 (3 < 4), 3 → 1, 1 → 0
    found = largest_differencing(problem)
    assert found is not None
    assert sum(found.loads) == 21
    assert found == problem.balance(found.bins)
    assert balanced(problem).highest == 7


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
)
def test_initial_loads_stay_in_their_bins(costs: list[int], before: list[int]) -> None:
    n, free = len(costs), [float("inf")] * len(before)
    problem = BalanceProblem(costs, [0.0] * n, free, [""] * n, before)
    best = optimum(problem)
    assert best is not None
    for found in (longest_first(problem), largest_differencing(problem), balanced(problem)):
        assert found is not None
        assert found.highest >= best
        for place, load in enumerate(found.loads):
            assert load == before[place] + sum(cost for cost, at in zip(costs, found.bins, strict=True) if at == place)
    assert balanced(problem).highest <= longest_first(problem).highest


def test_neighbours_stay_together_if_it_costs_nothing() -> None:
    alike = balance_problem([10.0, 10.01, 9.99, 10.0, 10.0, 10.0], 3)
    assert prefer_contiguous(alike, balanced(alike)).bins == (0, 0, 1, 1, 2, 2)
    mixed = balance_problem([7, 1, 7, 3, 6], 2)  # 15 if neighbours share bins, 13 otherwise
    assert prefer_contiguous(mixed, balanced(mixed)) == balanced(mixed)


def test_contiguous_items_respect_initial_loads_and_capacities() -> None:
    ahead = BalanceProblem([1.0] * 4, [1] * 4, [4, 4], list("abcd"), before=[2.0, 0.0])
    assert prefer_contiguous(ahead, balanced(ahead)).bins == (0, 1, 1, 1)
    tight = BalanceProblem([1.0] * 4, [3, 3, 1, 1], [4, 4], list("abcd"))
    found = balanced(tight)
    assert prefer_contiguous(tight, found) == found


def test_items_are_packed_where_greedy_finds_no_place() -> None:
    """5 and 4 fill one bin of 9, and three of 3 the other. By falling size to the emptier bin, 5 and 4 are apart."""
    problem = balance_problem([1.0] * 5, 2, [5.0, 4.0, 3.0, 3.0, 3.0], 9.0)
    with pytest.raises(NoFeasiblePlan):
        longest_first(problem)
    found = balanced(problem)
    assert sorted(found.used) == [9, 9]


def test_packing_takes_items_back() -> None:
    """The fullest bin first would put 6 and 4 together, after which 5, 5 and 5 need more than the other two bins."""
    found = packed(balance_problem([0.0] * 6, 3, [6.0, 5.0, 5.0, 5.0, 4.0, 4.0], 10.0))
    assert found is not None
    assert max(found.used) <= 10
    assert packed(balance_problem([0.0] * 3, 2, [6.0, 6.0, 6.0], 10.0)) is None
    assert packed(balance_problem([0.0] * 400, 7, [3.0] * 400, 170.0)) is None  # 56 a bin, 392 in all: ends in any case
    assert packed(balance_problem([], 2, [], -1.0)) is not None

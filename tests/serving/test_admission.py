"""Which requests may wait: by what rows took, by how late answers were, and by whether a queue is more than a burst."""

from __future__ import annotations

import pytest

from ziggurat.serving.http.batching.admission import Admission, Lateness, RowSeconds, StandingQueue
from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused

LIMITS = ServingLimits()


def test_a_lone_row_of_a_cold_process_does_not_stand_for_each_of_many() -> None:
    lately = RowSeconds()
    assert lately.of_a_row == 0.0
    lately.add(1, 1.0)
    assert lately.of_a_row == pytest.approx(1.0)
    lately.add(200, 0.1)
    assert lately.of_a_row == pytest.approx((0.9 + 0.1) / (0.9 + 200))
    for _ in range(200):
        lately.add(50, 0.2)
    assert lately.of_a_row == pytest.approx(0.004)


def test_lateness_is_a_mean_and_four_deviations() -> None:
    late = Lateness()
    for _ in range(200):
        late.add(0.02)
    assert late.allowance == pytest.approx(0.02, rel=1e-3)
    for _ in range(200):
        late.add(0.01)
        late.add(0.03)
    assert 0.05 < late.allowance < 0.07
    for _ in range(200):
        late.add(-0.5)
    assert late.allowance == 0.0


def test_a_queue_stands_once_its_wait_was_too_long_for_longer_than_two_batches_take() -> None:
    standing = StandingQueue(0.02)
    assert not standing.stands(10.0, 5.0, 0.01), "the first request of a burst"
    assert not standing.stands(10.09, 5.0, 0.01)
    assert standing.stands(10.11, 5.0, 0.01)
    assert not standing.stands(10.11, 5.0, 0.2), "a batch takes .2 s"
    assert not standing.stands(10.12, 0.02, 0.01), "it was short"
    assert not standing.stands(10.2, 5.0, 0.01)


def test_a_queue_that_stood_is_kept_short_until_a_second_passed_without_a_refusal() -> None:
    standing = StandingQueue(0.02)
    standing.stands(10.0, 5.0, 0.01)
    standing.refused(10.2)
    assert standing.stands(10.3, 0.0, 0.01)
    assert standing.stands(11.1, 0.0, 0.01)
    assert not standing.stands(11.3, 0.0, 0.01)


def test_a_queue_that_stands_takes_twenty_milliseconds_or_ten_requests() -> None:
    """Unless it is said how long it may be, a queue of few slow requests is not too short to keep the model busy."""
    for requests, rows_allowed in ((50, 20), (2, 250)):  # requests of one row of 1 ms, and of 25 rows
        admission = Admission(ServingLimits())
        admission.lately.add(50, 0.05, requests)
        admission.overload(10.0, 1000, 50)
        assert admission.overload(10.5, rows_allowed, 50) is None
        assert admission.overload(10.5, rows_allowed + 1, 50) is not None
    assert RowSeconds().of_a_request == 0.0


def test_admission_takes_a_burst_and_keeps_the_queue_of_an_overload_short() -> None:
    """Requests of 10 rows of 1 ms each come every 2 ms, five times as fast as they are predicted, in batches of 50."""
    admission = Admission(ServingLimits(overload_wait_s=0.02, batch_rows=50))
    admission.lately.add(50, 0.05)
    queued, busy, free_at, waits, problems = 0, 0, 0.0, dict[float, float](), list[str]()
    for number in range(2_000):
        now = number * 0.002
        if now >= free_at:
            busy, queued = min(50, queued), max(0, queued - 50)
            free_at = now + busy * 0.001
        try:
            waits[now] = admission.admit(now, now + 60.0, 10, queued, busy)
            queued += 10
        except HttpRefused as error:
            problems.append(error.problem)
    assert max(wait for now, wait in waits.items() if now < 0.1) > 0.2, "a burst waits"
    assert max(wait for now, wait in waits.items() if now > 1.0) <= 0.081, "a batch, 20 ms, and the last request"
    assert 0.75 < len(problems) / 2_000 < 0.82, "the rest is answered, at the full rate"
    assert all("requests come faster than they are answered" in problem for problem in problems)

"""Which requests may wait: those that can be answered before their deadline, and in an overload only a short queue.

A queue takes up bursts. One that stands, because requests come faster than they are answered, adds nothing but its
length to every answer. Nichols and Jacobson tell the two apart by the least wait within an interval ("Controlling queue
delay", ACM Queue 10(5), 2012), and Maurer refuses requests by it ("Fail at scale", ACM Queue 13(8), 2015). Ours differs
in three points: the wait is an estimate made when a request arrives, so that it is refused at once and not after it has
waited; the interval grows with a batch; and the queue stays short until a second has passed without a refusal.
"""

from __future__ import annotations

from ziggurat.serving.http.limits import ServingLimits
from ziggurat.serving.http.refusals import HttpRefused, overloaded

_SMOOTHING = 0.1
"""How much the last batch or answer counts."""
_INTERVAL_S = 0.1
_INTERVAL_BATCHES = 2.0
"""A queue stands once its wait was too long for the longer of the two: seconds, and what so many batches take."""
_WAIT_S, _QUEUED_REQUESTS = 0.02, 10.0
"""What a queue that stands may take unless it is said: seconds, or as long as so many requests take if that is longer.
With few requests in it a queue would be empty at times."""
_CALM_S = 1.0


class Lateness:
    """By how much answers came later than was expected: a moving mean and mean deviation, as TCP has of its round trips
    (Jacobson, "Congestion avoidance and control", SIGCOMM 1988, appendix A)."""

    def __init__(self) -> None:
        self._mean = self._deviation = 0.0

    @property
    def allowance(self) -> float:
        """Seconds after the expected time by which most answers have come."""
        return max(0.0, self._mean + 4 * self._deviation)

    def add(self, seconds: float) -> None:
        """Notes by how much an answer was later than expected."""
        off = seconds - self._mean
        self._mean += _SMOOTHING * off
        self._deviation += _SMOOTHING * (abs(off) - self._deviation)


class RowSeconds:
    """What a row takes: the seconds of the last batches by their rows, the newer the heavier.

    A ratio of sums, so that a lone row in a cold process does not stand for what each of many rows takes.
    """

    def __init__(self) -> None:
        self._seconds = self._rows = self._requests = 0.0

    @property
    def of_a_row(self) -> float:
        """Seconds; 0 before the first batch."""
        return self._seconds / self._rows if self._rows else 0.0

    @property
    def of_a_request(self) -> float:
        """Seconds of a request among others; 0 before the first batch."""
        return self._seconds / self._requests if self._requests else 0.0

    def add(self, rows: int, seconds: float, requests: int = 1) -> None:
        """Notes what a batch took."""
        self._seconds += seconds - _SMOOTHING * self._seconds
        self._rows += rows - _SMOOTHING * self._rows
        self._requests += requests - _SMOOTHING * self._requests


class StandingQueue:
    """Whether a queue is more than a burst.

    Args:
        longest_s: a wait that is short enough at any time, seconds.
    """

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._short_at: float | None = None
        self._refused_at = float("-inf")

    def stands(self, now: float, wait_s: float, batch_s: float) -> bool:
        """Whether requests have come faster than they are answered.

        Args:
            now: when a request arrives (monotonic seconds).
            wait_s: what all rows before it take, seconds.
            batch_s: what the batch that is being predicted takes, seconds.
        """
        if wait_s <= self._longest_s or self._short_at is None:
            self._short_at = now
        too_long_for_s = now - self._short_at
        return now - self._refused_at < _CALM_S or too_long_for_s > max(_INTERVAL_S, _INTERVAL_BATCHES * batch_s)

    def refused(self, now: float) -> None:
        """Notes that a request was refused because the queue stands."""
        self._refused_at = now


class Admission:
    """Tells which requests may wait. Threads may call it in turns, not at once.

    Args:
        limits: the bounds of queue and wait.

    Attributes:
        lately: what a row took lately.
        late: by how much answers came later than was expected.
    """

    def __init__(self, limits: ServingLimits) -> None:
        self._limits = limits
        self.lately, self.late = RowSeconds(), Lateness()
        self._standing = StandingQueue(_WAIT_S if limits.overload_wait_s is None else limits.overload_wait_s)

    def admit(self, now: float, deadline: float, rows: int, queued_rows: int, busy_rows: int) -> float:
        """Returns the seconds that the rows before a request are expected to take.

        Its own rows are not counted in them: many cost less than so many times what one alone takes. A request that
        need not wait is admitted whatever others took: else nothing would tell that they take less now.

        Args:
            now: when it arrives (monotonic seconds).
            deadline: when it must be answered.
            rows: how many it has.
            queued_rows, busy_rows: those that wait, and those that are being predicted.

        Raises:
            HttpRefused: the queue is full or too long, or the deadline cannot be met.
        """
        row_s = self.lately.of_a_row
        wait_s = (queued_rows + busy_rows) * row_s
        if queued_rows and queued_rows + rows > self._limits.queue_rows:
            raise overloaded(f"{queued_rows:,} rows wait already; {self._limits.queue_rows:,} may", wait_s)
        if wait_s and now + wait_s + self.late.allowance > deadline:
            raise overloaded(
                f"the rows that wait take another {wait_s * 1e3:.4g} ms, and this request would be answered after "
                f"{(wait_s + self.late.allowance) * 1e3:.4g} ms; it must be within "
                f"{max(0, deadline - now) * 1e3:.4g} ms",
                wait_s,
            )
        refused = self.overload(now, queued_rows, busy_rows)
        if refused is not None:
            raise refused
        return wait_s

    def overload(self, now: float, queued_rows: int, busy_rows: int) -> HttpRefused | None:
        """Returns the refusal of any request, whatever it asks for, because the queue stands; None if it may wait.

        Args:
            now: when it arrives (monotonic seconds).
            queued_rows, busy_rows: those that wait, and those that are being predicted.
        """
        row_s = self.lately.of_a_row
        wait_s, queue_s = (queued_rows + busy_rows) * row_s, queued_rows * row_s
        allowed_s = self._limits.overload_wait_s
        if allowed_s is None:
            allowed_s = max(_WAIT_S, _QUEUED_REQUESTS * self.lately.of_a_request)
        if not self._standing.stands(now, wait_s, busy_rows * row_s) or queue_s <= allowed_s:
            return None
        self._standing.refused(now)
        return overloaded(
            f"requests come faster than they are answered, and the rows that wait take {queue_s * 1e3:.4g} ms; "
            f"{allowed_s * 1e3:.4g} ms are allowed until they come slower",
            wait_s,
        )

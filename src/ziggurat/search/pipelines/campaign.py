"""Runs a method against the budget: answers what is recorded, computes what is not, and stops where it has to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ziggurat.core.progress import Progress
from ziggurat.search.pipelines.evaluation import Assignment, Result, key_of, simplified
from ziggurat.search.pipelines.found import Trial
from ziggurat.search.pipelines.methods.proposals import Proposal, Proposals
from ziggurat.search.pipelines.pipeline import title
from ziggurat.search.pipelines.records import Records
from ziggurat.search.pipelines.table import Table
from ziggurat.search.pipelines.workers import Judges

_MOST_REPEATED = 50
"""Batches without anything new after which a method is taken to have seen its whole space."""


class Stopped(Exception):
    """A signal or the deadline ended the search."""


class Campaign:
    """The evaluations of one search.

    Only what differs counts against the budget: an assignment whose pipelines are the same for every column as those of
    an earlier one gets its score without an evaluation.

    Args:
        table: the training rows.
        workers: who computes.
        records: what was computed.
        stopped: whether to stop.
        progress: where to show progress.
    """

    def __init__(
        self, table: Table, workers: Judges, records: Records, stopped: Callable[[], bool], progress: Progress
    ) -> None:
        self.table, self.workers, self.records, self.stopped, self.progress = table, workers, records, stopped, progress
        self.trials: list[Trial] = []
        self._asked: dict[str, Result] = {}

    def run(self, method: Proposals, budget: int) -> None:
        """Runs a method until ``budget`` evaluations are done in all, or it ends.

        Raises:
            Stopped: before that.
        """
        repeated = 0
        try:
            batch = next(method)
            while True:
                before = len(self.trials)
                results = self.evaluate(batch, 0, budget - before)
                if results is None:
                    return
                repeated = 0 if len(self.trials) > before else repeated + 1
                if repeated >= _MOST_REPEATED or len(self.trials) >= budget:
                    return
                batch = method.send([each.score for each in results])
        except StopIteration:
            return
        finally:
            method.close()

    def evaluate(self, batch: Sequence[Proposal], repeat: int, left: int) -> list[Result] | None:
        """Returns the results of a batch; None if it has more new evaluations than ``left``, of which so many are done.

        Raises:
            Stopped: some are missing.
        """
        made = [Proposal(each.origin, simplified(self.table, each.pipelines)) for each in batch]
        keys = [key_of(each.pipelines, repeat) for each in made]
        new = {key: each for key, each in zip(keys, made, strict=True) if key not in self._asked}
        allowed = dict(list(new.items())[:left])
        missing = {key: each for key, each in allowed.items() if self.records.get(key) is None}
        places = list(missing)
        asked = [(missing[key].pipelines, repeat) for key in places]
        for place, result in self.workers.results(asked, self.stopped):
            key = places[place]
            named = {name: title(pipeline) for name, pipeline in missing[key].pipelines.items()}
            self.records.add(key, result, {"origin": missing[key].origin, "repeat": repeat, "pipelines": named})
            self._show()
        for key, each in allowed.items():
            found = self.records.get(key)
            if found is None:
                raise Stopped
            self._asked[key] = found
            self.trials.append(
                Trial(len(self.trials), each.origin, each.pipelines, repeat, found.scores, found.seconds, found.reason)
            )
        self._show()
        return [self._asked[key] for key in keys] if len(allowed) == len(new) else None

    def result(self, pipelines: Assignment, repeat: int) -> Result | None:
        """Returns the result of an evaluation that counts; None if there is none."""
        return self._asked.get(key_of(simplified(self.table, pipelines), repeat))

    def _show(self) -> None:
        best = max((each.score for each in self.trials if each.repeat == 0), default=float("nan"))
        self.progress.advance(len(self.trials), best=round(best, 5))

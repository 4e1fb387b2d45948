"""What checkpoints write and keep against full ones in fp32, and what going on from them costs in log-loss.

Three data sets: a generated log of Criteo's shape whose ids follow Zipf's law with exponent 1.05, MovieLens-100K
(fetched from the package index), and Frappe where ``--data`` names its folder. Each trains a DeepFM of width 64 with a
dense part of 32 units, small because the tables of a large model are more than 99 % of its bytes; on the two real sets,
whose tables have some thousand rows, the dense part is a good share all the same, so bytes of tables alone are told
beside.

**Bytes.** Every file that a real training writes and deletes is counted, manifests and dense part included, over 12
intervals and more, with one checkpoint kept. *Written* is what all of them have written; *kept* the most that lay in
the folder at any moment, which is while the next one is written and the last one is still there: of full fp32
checkpoints, two. The exact checkpoint that the end of training writes is left out. Nothing is timed, so noise of the
machine has no part in it; the seed is 0, and another one would draw other rows for the intervals, about as many.

A table of the generated data has every id that occurs in the training rows once or more, and no others, so that by the
end of the log every row has changed. How many do in an interval is a matter of its length; several are measured, on the
real sets down to a single step: nearly all of their few rows change in any interval that a user would choose.

**Log-loss.** A training fails at evenly spread checkpoints and goes on from each; its final log-loss on the test rows
is compared with never having stopped, for three seeds (of initial weights and of the order of rows). The failures that
widths are meant for are 1, 3, 20 and more for 2, 3, 4 and 8 bits; trainings here have 1, 2, 3 and 3: they are short,
and have less time to make up for a failure. Rounding sends a training another way than that of the same seed without
it, so a single difference is luck in part: what a width costs is the mean over seeds, whose standard error is told.
What is restored does not depend on the policy, as a row is quantised by itself, and has not changed since it was. So
the policy is ``intermittent`` here, and the width what varies.
"""

from __future__ import annotations

import statistics as st
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.provenance import digest
from bench.quality.checkpoint_data import subjects
from bench.quality.checkpoint_runs import Kept, Spans, Subject, counted, log_loss
from bench.quality.checkpoint_settings import (
    HEAD,
    KEPT,
    MOST_CHANGED,
    OFF,
    REFERENCE,
    RESTORES,
    WRITTEN,
    Setting,
    compared,
)
from bench.resumable_cases import ResumableCases
from ziggurat.data.encoded.dataset import Dataset

POLICIES = ("one_shot", "consecutive", "intermittent")
SEEDS = 3


def run(context: Context) -> Result:
    if context.quick:
        with tempfile.TemporaryDirectory(dir=context.cache, prefix="checkpoint-bytes-") as scratch:
            return _measured(context, Path(scratch))
    folder = context.cache / "checkpoint-bytes"
    folder.mkdir(exist_ok=True)
    return _measured(context, folder)


def _measured(context: Context, folder: Path) -> Result:
    resumable = ResumableCases(folder / "noted.jsonl", digest(ROOT, CHECKPOINT_BYTES.depends_on))
    said = [f"{len(resumable)} of the trainings in an earlier sitting"] if len(resumable) else []
    settings: list[Setting] = []
    figures: list[Figure] = []
    for subject in subjects(context, folder):
        dataset = subject.dataset(folder)
        off = _off(context, subject, dataset, resumable, folder)
        for spans in subject.spans:
            found: dict[tuple[str, int], Kept] = {}
            for policy, bits in _ways(context.quick):
                case = f"{subject.name}, {dataset.fingerprint[:8]}, {spans}, {policy}, {bits} bits"
                took = resumable.get(case, partial(_counted, subject, dataset, spans, policy, bits, folder))
                found[policy, bits] = Kept.from_json(took)
                context.say(f"{subject.name}, {spans.steps} steps, {policy}, {bits} bits: {sum(took['written']):,} B")
            settings += compared(subject.name, spans, found, off)
            figures += _bytes_figures(subject.name, spans, found)
        figures += _off_figures(subject.name, off)
        said.append(f"{subject.name}: {subject.description}")
    result = Result(
        (*_best(settings), *figures), 0, len(_seeds(context.quick)), (*_notes(context, settings), *said),
        cases=(HEAD, *(setting.cells() for setting in settings)),
    )  # fmt: skip
    resumable.forget()
    return result


def _counted(subject: Subject, dataset: Dataset, spans: Spans, policy: str, bits: int, folder: Path) -> dict[str, Any]:
    return counted(subject, dataset, spans, policy, bits, folder).to_json()


def _off(
    context: Context, subject: Subject, dataset: Dataset, resumable: ResumableCases, folder: Path
) -> dict[int, tuple[float, ...]]:
    """Bits -> relative change of the log-loss in percent, a seed each."""

    def ended(seed: int, bits: int, restores: int) -> float:
        case = f"{subject.name}, {dataset.fingerprint[:8]}, seed {seed}, {bits} bits, {restores} restores"
        loss = float(resumable.get(case, partial(log_loss, subject, dataset, seed, bits, restores, folder)))
        context.say(f"{case}: log-loss {loss:.6f}")
        return loss

    seeds = _seeds(context.quick)
    undisturbed = [ended(seed, 32, 0) for seed in seeds]
    every = sorted({bits for _, bits in _ways(context.quick)})
    return {
        bits: tuple(
            100 * (ended(seed, bits, RESTORES[bits]) / loss - 1) for seed, loss in zip(seeds, undisturbed, strict=True)
        )
        for bits in every
    }


def _ways(quick: bool) -> Iterable[tuple[str, int]]:
    if quick:
        return (REFERENCE, ("consecutive", 32), ("intermittent", 2))
    return (REFERENCE, *((policy, bits) for policy in POLICIES for bits in RESTORES))


def _seeds(quick: bool) -> range:
    return range(1 if quick else SEEDS)


def _best(settings: Sequence[Setting]) -> list[Figure]:
    """The setting of the generated data that clears what is asked for by most, in its worst respect, and that fp32
    deltas restore what there was."""
    asked = [setting for setting in settings if setting.data == "criteo"]
    best = max(asked, key=lambda setting: (setting.margin, setting.written))
    note = (
        f"{best.policy}, {best.bits} bits, an interval of {best.spans.steps} steps in which "
        f"{100 * best.changed:.1f} % of the rows change"
    )
    failed = RESTORES[best.bits]
    exact = [abs(each) for setting in settings if setting.bits == 32 for each in setting.off]
    return [
        Figure("written", "x", (best.written,), f"less than full fp32 checkpoints: {note}"),
        Figure("kept", "x", (best.kept,), "less at the fullest moment: the same setting"),
        Figure("log_loss_off", "%", (abs(st.fmean(best.off)),), f"to either side: the same, restores: {failed}"),
        Figure("exact_off", "%", (max(exact),), "fp32 deltas, every data set and seed"),
    ]  # fmt: skip


def _bytes_figures(data: str, spans: Spans, found: Mapping[tuple[str, int], Kept]) -> list[Figure]:
    """Bytes of an interval by full fp32 checkpoints, by the paper's widest setting, and the rows that change."""
    full = found[REFERENCE]
    changed = next(kept for (policy, _), kept in found.items() if policy == "consecutive")
    least = found["intermittent", 2]
    name = f"{data}.{spans.steps}"
    shares = tuple(100 * rows / changed.all_rows for rows in changed.rows[1:])
    return [
        Figure(f"{name}.changed", "%", shares, f"of {changed.all_rows:,} rows, an interval each"),
        Figure(f"{name}.full_fp32", "MB", tuple(each / 1e6 for each in full.written), "an interval each"),
        Figure(f"{name}.intermittent_2", "MB", tuple(each / 1e6 for each in least.written), "an interval each", "mean"),
        Figure(f"{name}.dense", "%", (100 * (1 - full.table_bytes / sum(full.written)),), "of full fp32 checkpoints"),
    ]


def _off_figures(data: str, off: Mapping[int, Sequence[float]]) -> list[Figure]:
    figures: list[Figure] = []
    for bits, samples in off.items():
        error = f"; standard error {st.stdev(samples) / len(samples) ** 0.5:.4f} %" if len(samples) > 1 else ""
        note = f"on test after {RESTORES[bits]} restores, a seed each{error}"
        figures.append(Figure(f"{data}.{bits}_bits.log_loss", "%", tuple(samples), note, "mean"))
    return figures


def _notes(context: Context, settings: Sequence[Setting]) -> tuple[str, ...]:
    if context.quick:
        return ("a generated log of some thousand rows: these figures mean nothing",)
    beyond = dict.fromkeys(
        f"{each.data}: {100 * each.changed:.0f} % of the rows change in an interval of {each.spans.steps} steps, more "
        "than what anything is asked at"
        for each in settings
        if each.changed > MOST_CHANGED
    )
    left_out = () if context.data else ("Frappe is left out: give its folder with --data",)
    return (
        f"written, kept and log_loss_off are of one setting, the one of the generated data that clears all three by "
        f"most where at most {100 * MOST_CHANGED:g} % of the rows change in an interval; the table has them all",
        "kept: at any moment, so of full fp32 checkpoints two; at rest: between two checkpoints",
        *beyond,
        *left_out,
    )


CHECKPOINT_BYTES = Benchmark(
    name="checkpoint_bytes",
    claim="Where a quarter of the rows or fewer change in an interval, checkpoints of the changed rows in few bits "
    "write 17 times less than full fp32 ones and keep 8 times less, for a log-loss .01 % off at most.",
    targets={
        "written": Target(WRITTEN),
        "kept": Target(KEPT),
        "log_loss_off": Target(OFF, "at most"),
        "exact_off": Target(0.0, "at most"),
    },
    depends_on=("bench/quality/checkpoint_bytes.py", "examples/movielens.yaml", "examples/frappe.yaml"),
    run=run,
)

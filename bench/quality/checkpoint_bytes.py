"""Measures what checkpoints write and store relative to full fp32 checkpoints, and the log-loss after a restore.

There are three data sets: a generated log of Criteo's shape whose ids follow Zipf's law with exponent 1.05,
MovieLens-100K (fetched from the package index), and Frappe if ``--data`` gives its folder. Each trains a DeepFM of
width 64 with a dense part of 32 units. The dense part is small because tables are more than 99 % of the bytes of a
large model. On the two real data sets, whose tables have only some thousand rows, it is still a considerable share, so
the bytes of tables alone are reported too.

**Bytes.** Every file that a training writes or deletes is counted, including manifests and the dense part, over 12 or
more intervals, with one checkpoint kept. *Written* is the sum over all checkpoints. *Kept* is the largest total size of
the folder at any moment, which is reached while the next checkpoint is written and the last one still exists; for full
fp32 checkpoints it is the size of two. The exact checkpoint at the end of training is not counted. Nothing is timed, so
the load of the machine has no influence. The seed is 0; other seeds draw other rows for the intervals, but about as
many.

In the generated data a table has exactly the ids that occur in the training rows, so every row has changed by the end
of the log. The share of rows that change in an interval depends on its length, and several lengths are measured. On the
real data sets the shortest is a single step, because nearly all of their few rows change in any interval of practical
length.

**Log-loss.** A training fails at evenly spaced checkpoints and resumes from each. Its final log-loss on the test rows
is compared with that of an undisturbed training, for three seeds (of the initial weights and the order of rows).
Widths of 2, 3, 4 and 8 bits are meant for 1, 3, 20 and more failures; the trainings here have 1, 2, 3 and 3, because
they are short and have less time to recover. Rounding makes a training diverge from that of the same seed without
rounding, so a single difference is partly chance. The cost of a width is therefore the mean over seeds, reported with
its standard error. Restored values do not depend on the policy, because each row is quantised separately and a row in
an older checkpoint has not changed since. Therefore only the width varies, and the policy is ``intermittent``.
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
from bench.quality.checkpoint_data import training_setups
from bench.quality.checkpoint_runs import Intervals, StorageBytes, TrainingSetup, counted, log_loss
from bench.quality.checkpoint_settings import (
    COLUMNS,
    KEPT_TARGET,
    MAX_CHANGED,
    MAX_LOG_LOSS_CHANGE,
    REFERENCE,
    RESTORES,
    WRITTEN_TARGET,
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
    resumable = ResumableCases(folder / "cases.jsonl", digest(ROOT, CHECKPOINT_BYTES.depends_on))
    notes = [f"{len(resumable)} of the trainings in an earlier run"] if len(resumable) else []
    settings: list[Setting] = []
    figures: list[Figure] = []
    for setup in training_setups(context, folder):
        dataset = setup.dataset(folder)
        off = _log_loss_changes(context, setup, dataset, resumable, folder)
        for intervals in setup.intervals:
            found: dict[tuple[str, int], StorageBytes] = {}
            for policy, bits in _policies_and_bits(context.quick):
                case = f"{setup.name}, {dataset.fingerprint[:8]}, {intervals}, {policy}, {bits} bits"
                took = resumable.get(case, partial(_count_bytes, setup, dataset, intervals, policy, bits, folder))
                found[policy, bits] = StorageBytes.from_json(took)
                context.say(f"{setup.name}, {intervals.steps} steps, {policy}, {bits} bits: {sum(took['written']):,} B")
            settings += compared(setup.name, intervals, found, off)
            figures += _bytes_figures(setup.name, intervals, found)
        figures += _log_loss_figures(setup.name, off)
        notes.append(f"{setup.name}: {setup.description}")
    result = Result(
        (*_best(settings), *figures), 0, len(_seeds(context.quick)), (*_notes(context, settings), *notes),
        cases=(COLUMNS, *(setting.cells() for setting in settings)),
    )  # fmt: skip
    resumable.forget()
    return result


def _count_bytes(
    setup: TrainingSetup, dataset: Dataset, intervals: Intervals, policy: str, bits: int, folder: Path
) -> dict[str, Any]:
    return counted(setup, dataset, intervals, policy, bits, folder).to_json()


def _log_loss_changes(
    context: Context, setup: TrainingSetup, dataset: Dataset, resumable: ResumableCases, folder: Path
) -> dict[int, tuple[float, ...]]:
    """Returns bits -> relative changes of the log-loss in percent, one per seed."""

    def ended(seed: int, bits: int, restores: int) -> float:
        case = f"{setup.name}, {dataset.fingerprint[:8]}, seed {seed}, {bits} bits, {restores} restores"
        loss = float(resumable.get(case, partial(log_loss, setup, dataset, seed, bits, restores, folder)))
        context.say(f"{case}: log-loss {loss:.6f}")
        return loss

    seeds = _seeds(context.quick)
    undisturbed = [ended(seed, 32, 0) for seed in seeds]
    every = sorted({bits for _, bits in _policies_and_bits(context.quick)})
    return {
        bits: tuple(
            100 * (ended(seed, bits, RESTORES[bits]) / loss - 1) for seed, loss in zip(seeds, undisturbed, strict=True)
        )
        for bits in every
    }


def _policies_and_bits(quick: bool) -> Iterable[tuple[str, int]]:
    if quick:
        return (REFERENCE, ("consecutive", 32), ("intermittent", 2))
    return (REFERENCE, *((policy, bits) for policy in POLICIES for bits in RESTORES))


def _seeds(quick: bool) -> range:
    return range(1 if quick else SEEDS)


def _best(settings: Sequence[Setting]) -> list[Figure]:
    """Returns figures of the setting with the largest margin on the generated data, and the error of fp32 deltas.

    The margin of a setting is that of the target that it meets by the smallest factor.
    """
    candidates = [setting for setting in settings if setting.data == "criteo"]
    best = max(candidates, key=lambda setting: (setting.margin, setting.written))
    note = (
        f"{best.policy}, {best.bits} bits, an interval of {best.intervals.steps} steps in which "
        f"{100 * best.changed:.1f} % of the rows change"
    )
    failed = RESTORES[best.bits]
    exact = [abs(each) for setting in settings if setting.bits == 32 for each in setting.off]
    return [
        Figure("written", "x", (best.written,), f"less than full fp32 checkpoints: {note}"),
        Figure("kept", "x", (best.kept,), "less at the peak: the same setting"),
        Figure("log_loss_off", "%", (abs(st.fmean(best.off)),), f"absolute: the same setting, restores: {failed}"),
        Figure("exact_off", "%", (max(exact),), "fp32 deltas, every data set and seed"),
    ]  # fmt: skip


def _bytes_figures(data: str, intervals: Intervals, found: Mapping[tuple[str, int], StorageBytes]) -> list[Figure]:
    """Returns figures of one interval: changed rows, bytes of full fp32 and 2-bit checkpoints, and the dense share."""
    full = found[REFERENCE]
    changed = next(kept for (policy, _), kept in found.items() if policy == "consecutive")
    least = found["intermittent", 2]
    name = f"{data}.{intervals.steps}"
    shares = tuple(100 * rows / changed.all_rows for rows in changed.rows[1:])
    return [
        Figure(f"{name}.changed", "%", shares, f"of {changed.all_rows:,} rows, per interval"),
        Figure(f"{name}.full_fp32", "MB", tuple(each / 1e6 for each in full.written), "per interval"),
        Figure(f"{name}.intermittent_2", "MB", tuple(each / 1e6 for each in least.written), "per interval", "mean"),
        Figure(f"{name}.dense", "%", (100 * (1 - full.table_bytes / sum(full.written)),), "of full fp32 checkpoints"),
    ]


def _log_loss_figures(data: str, off: Mapping[int, Sequence[float]]) -> list[Figure]:
    figures: list[Figure] = []
    for bits, samples in off.items():
        error = f"; standard error {st.stdev(samples) / len(samples) ** 0.5:.4f} %" if len(samples) > 1 else ""
        note = f"on test after {RESTORES[bits]} restores, per seed{error}"
        figures.append(Figure(f"{data}.{bits}_bits.log_loss", "%", tuple(samples), note, "mean"))
    return figures


def _notes(context: Context, settings: Sequence[Setting]) -> tuple[str, ...]:
    if context.quick:
        return ("a generated log of some thousand rows: these figures mean nothing",)
    without_target = dict.fromkeys(
        f"{each.data}: {100 * each.changed:.0f} % of the rows change in an interval of {each.intervals.steps} steps, "
        "for which there is no target"
        for each in settings
        if each.changed > MAX_CHANGED
    )
    left_out = () if context.data else ("Frappe is left out: give its folder with --data",)
    return (
        "written, kept and log_loss_off are of one setting of the generated data, the one with the largest margin over "
        f"all three targets among those with at most {100 * MAX_CHANGED:g} % of the rows changed per interval; the "
        "table case by case has all settings",
        "kept: the peak, which for full fp32 checkpoints is two of them; at rest: between two checkpoints",
        *without_target,
        *left_out,
    )


CHECKPOINT_BYTES = Benchmark(
    name="checkpoint_bytes",
    claim="If at most a quarter of the rows change in an interval, incremental checkpoints in few bits write 17 times "
    "fewer bytes than full fp32 checkpoints, store 8 times fewer, and change the log-loss by at most .01 %.",
    targets={
        "written": Target(WRITTEN_TARGET),
        "kept": Target(KEPT_TARGET),
        "log_loss_off": Target(MAX_LOG_LOSS_CHANGE, "at most"),
        "exact_off": Target(0.0, "at most"),
    },
    depends_on=("bench/quality/checkpoint_bytes.py", "examples/movielens.yaml", "examples/frappe.yaml"),
    run=run,
)

"""Judges a run's ensemble in episodes that decided nothing: against each snapshot, other rules and other λ."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ziggurat.core.errors import ConfigError, RunFolderError
from ziggurat.core.files import locked_folder
from ziggurat.core.progress import Progress, Silent
from ziggurat.policies import run_folder
from ziggurat.policies.choosing import finished_snapshots, rules_of
from ziggurat.policies.config import PoliciesConfig
from ziggurat.policies.records import EvaluationRecord, Judged, Rule, SelectionRecord
from ziggurat.policies.selection import mean_divergence, select


def judge(
    folder: Path | str, config: PoliciesConfig | None = None, *, progress: Progress | None = None
) -> EvaluationRecord:
    """Plays the evaluation's episodes and writes ``evaluation.json``, and a film of the first one.

    Played are the ensemble that :func:`~ziggurat.policies.choosing.choose` took, each snapshot, the chosen members with
    each other rule, and for each λ of ``evaluation.sweep`` the members that it takes. Nothing is chosen by the outcome.

    Args:
        folder: the run.
        config: its config with other settings of ``evaluation``, which are kept; default: as it is.
        progress: where to show progress.

    Raises:
        RunFolderError: the folder is no run of policies, is damaged, was trained otherwise, or nothing was
            chosen yet.
        ConfigError: the members were chosen in some of these episodes, or to act otherwise.
        EnvironmentMismatch: the extra ``rl`` is not installed.
    """
    from ziggurat.policies.agents.ensemble_policy import acting
    from ziggurat.policies.agents.film import film
    from ziggurat.policies.agents.load_members import load_members
    from ziggurat.policies.agents.play import play, play_randomly

    folder, progress = Path(folder), progress or Silent()
    run_folder.read_config(folder)
    with locked_folder(folder, "evaluating policies"):
        known = run_folder.read_config(folder)
        config = config or known
        run_folder.check_same(folder, known, config, ("task", "algorithm", "training"))
        selection = read_selection(folder)
        if selection is None:
            raise RunFolderError(f"{folder}: no members are chosen yet", f"ziggurat policies select {folder}")
        snapshots = finished_snapshots(folder, config)
        if tuple(each.cycle for each in snapshots) != selection.cycles:
            raise RunFolderError(f"{folder}: has other snapshots than were chosen from", "run `policies select` again")
        members = dict(zip(selection.cycles, load_members(folder, config, snapshots), strict=True))
        seeds = range(config.evaluation.first_seed, config.evaluation.first_seed + config.evaluation.episodes)
        _check_apart(selection, config, seeds)
        rule = selection.ensemble.rule
        rules = rules_of(config, next(iter(members.values())).action_space)
        share = config.evaluation.sweep_tolerance
        swept = [swept_members(selection, weight, share) for weight in config.evaluation.sweep]
        wanted: list[tuple[tuple[int, ...], Rule]] = [
            (selection.ensemble.members, rule),
            *(((cycle,), rules[0]) for cycle in selection.cycles),
            *((selection.ensemble.members, each) for each in rules),
            *((each, rule) for each in swept),
        ]
        found: dict[tuple[tuple[int, ...], Rule], Judged] = {}
        steps = 0
        progress.start("evaluate", len(set(wanted)), "policies")
        for cycles, by in wanted:
            if (cycles, by) in found:
                continue
            together = play(config.task, acting(config, [members[each] for each in cycles], by, seeds).act, seeds)
            found[cycles, by] = Judged(cycles, by, _divergence(selection, cycles), tuple(together.returns))
            steps += together.steps
            progress.advance(len(found), **{"return": f"{found[cycles, by].mean:.4g}"})
        progress.finish()
        record = EvaluationRecord(
            ensemble=found[selection.ensemble.members, rule],
            snapshots=tuple(found[(cycle,), rules[0]] for cycle in selection.cycles),
            best=selection.best,
            random=tuple(play_randomly(config.task, seeds).returns),
            weights=config.evaluation.sweep,
            sweep=tuple(found[each, rule] for each in swept),
            rules=tuple(found[selection.ensemble.members, each] for each in rules),
            steps=steps,
        )
        run_folder.write_config(folder, known.model_copy(update={"evaluation": config.evaluation}))
        run_folder.write_record(folder, run_folder.EVALUATION_FILE, record)
        ensemble = acting(config, [members[each] for each in selection.ensemble.members], rule, seeds)
        run_folder.write_record(folder, run_folder.FILM_FILE, film(config.task, ensemble.act, seeds[0]))
    return record


def read_selection(folder: Path) -> SelectionRecord | None:
    """Returns what selection found, or None if nothing was chosen yet.

    Raises:
        RunFolderError: it is damaged.
    """
    path = folder / run_folder.SELECTION_FILE
    record = run_folder.read_result(folder, run_folder.SELECTION_FILE, SelectionRecord)
    if record is None:
        return None
    count = len(record.cycles)
    fits = (
        count > 0
        and len(record.returns) == count == len(record.divergence)
        and all(record.returns)
        and all(len(row) == count for row in record.divergence)
        and 0 <= record.chosen < len(record.candidates)
        and record.size >= 0
        and all(each.members and set(each.members) <= set(record.cycles) for each in record.candidates)
    )
    if not fits:
        raise run_folder.DAMAGE.of(path, "its parts do not fit together")
    return record


def swept_members(selection: SelectionRecord, weight: float, share: float) -> tuple[int, ...]:
    """Returns the cycles of the members that λ = ``weight`` takes, by what selection found.

    As many are taken as were asked for. δ is ``share`` of the range of the snapshots' returns.
    """
    means = selection.means
    tolerance = share * (max(means) - min(means))
    chosen = select(means, selection.divergence_MM, selection.wanted, weight, tolerance)
    return tuple(selection.cycles[place] for place in chosen.members)


def _check_apart(selection: SelectionRecord, config: PoliciesConfig, seeds: range) -> None:
    """Checks that the episodes with these seeds did not choose the members, which act as when they were chosen.

    Raises:
        ConfigError: they did, or they do not.
    """
    first, end = selection.episodes
    if first < seeds.stop and seeds.start < end:
        raise ConfigError(
            f"evaluation.first_seed: its {len(seeds)} episodes from {seeds.start} on overlap with those from "
            f"{first} to {end - 1} in which the members were chosen",
            "give seeds that are apart, or run `policies select` again",
        )
    if selection.temperature != config.ensemble.temperature:
        raise ConfigError(
            f"ensemble.temperature: received {config.ensemble.temperature:g}; the members were chosen with "
            f"{selection.temperature:g}",
            "run `policies select` again",
        )
    if selection.drawn != config.is_drawn:
        allowed = "drawn" if selection.drawn else "not drawn"
        raise ConfigError(
            f"ensemble.drawn: received {config.ensemble.drawn}; the members were chosen with actions {allowed}",
            "run `policies select` again",
        )


def _divergence(selection: SelectionRecord, cycles: Sequence[int]) -> float:
    places = [selection.cycles.index(each) for each in cycles]
    return mean_divergence(np.asarray(selection.divergence_MM), places)

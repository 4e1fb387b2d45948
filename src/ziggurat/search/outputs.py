"""What a search has found, as files: ``trials.jsonl`` and ``best.yaml``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ziggurat.core.files import atomic_file
from ziggurat.metrics.names import ALL_METRICS, base_name
from ziggurat.search.ensemble import SearchedEnsemble
from ziggurat.search.lead import Lead
from ziggurat.search.space import Space
from ziggurat.search.study import TrialRecord
from ziggurat.training.experiment import Experiment, as_yaml
from ziggurat.training.run_folder.run_files import CONFIG_FILE

TRIALS_FILE = "trials.jsonl"
BEST_FILE = "best.yaml"


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found so far.

    Attributes:
        name: the name of the experiment.
        monitor: the metric that decides.
        higher_is_better: its direction.
        space: the keys that were varied, with their possible values.
        own: the values of the config itself.
        trials: all trials, by number.
        best: the best of them.
        importances: key -> share of the variance of the trials' values.
        test: figures of the best trial on the test split; empty before the search is finished.
        ensemble: the ensemble of the best trials, if there is one.
        lead: how far the trial with the best value is ahead of the config as it is, if that is known.
    """

    name: str
    monitor: str
    higher_is_better: bool
    space: Space
    own: dict[str, Any]
    trials: tuple[TrialRecord, ...]
    best: TrialRecord
    importances: dict[str, float]
    test: dict[str, float]
    ensemble: SearchedEnsemble | None = None
    lead: Lead | None = None


def write_trials(path: Path, records: Sequence[TrialRecord]) -> None:
    """Writes a line for each trial, atomically."""
    lines = [
        {
            "number": each.number,
            "state": each.state,
            "settings": each.settings,
            "value": each.value,
            "history": [{"done": share / 1000, "best": value} for share, value in each.history],
            "validation": each.figures,
            "steps": each.steps,
            "seconds": round(each.seconds, 3),
            **({"reason": each.reason} if each.reason else {}),
            **({} if each.same_as is None else {"same_as": each.same_as}),
        }
        for each in records
    ]
    with atomic_file(path) as temporary:
        temporary.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), encoding="utf-8")


def changes(settings: Mapping[str, Any], own: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Returns (key, value of the config, value of the trial) of each setting in which a trial differs."""
    return [(key, shown(own[key]), shown(value)) for key, value in settings.items() if value != own[key]]


def shown(value: Any) -> str:
    """Writes a setting briefly: floats with four digits, the rest as in YAML."""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value, ensure_ascii=False)


def write_best(path: Path, experiment: Experiment, found: Found, prepared: Path) -> None:
    """Writes the config of the best trial, atomically, with comments that say how it was found.

    Its name ends in ``-best``, so that its run folder is not that of the config that the search began with.

    Args:
        path: the file.
        experiment: the experiment of the best trial.
        found: what the search has found.
        prepared: the prepared data of the search.
    """
    best, first = found.best, found.trials[0]
    comments = [
        f"Found by `ziggurat search hyperparameters`: trial {best.number} of {len(found.trials)}.",
        f"Validation {found.monitor}: {best.value:.6g}; of the config as it was: {_value(first)}.",
    ]
    changed = changes(best.settings, found.own)
    comments += [f"  {key}: {before} -> {after}" for key, before, after in changed]
    if found.lead is not None:
        comments.append(lead_words(found.lead))
    elif not changed:
        comments.append("No trial was better than the config as it was.")
    if found.test:
        judged = {name: value for name, value in found.test.items() if ALL_METRICS[base_name(name)].better != "neither"}
        figures = ", ".join(f"{name} {value:.6g}" for name, value in judged.items())
        comments.append(f"Test, computed once, after the choice: {figures}")
    comments.append(f"Train it: ziggurat train {path} --prepared {prepared}")
    values = {**experiment.model_dump(mode="json"), "name": f"{found.name}-best"}
    header = "".join(f"# {line}\n" for line in comments)
    with atomic_file(path) as temporary:
        temporary.write_text(header + as_yaml(values), encoding="utf-8")


def lead_words(lead: Lead) -> str:
    """Returns a sentence about the lead of the trial with the best value."""
    if lead.is_noise:
        return (
            f"Trial {lead.trial} has the best value, but is ahead of the config as it was by {lead}: within a standard "
            f"error, so the config was kept. Its own is trials/{lead.trial:04d}/{CONFIG_FILE}."
        )
    return f"Trial {lead.trial} is ahead of the config as it was by {lead} (standard error)."


def _value(record: TrialRecord) -> str:
    return record.state if record.value is None else f"{record.value:.6g}"

"""Trains the proxy of a preparation, pass by pass, and keeps what it learned for later preparations of the same rows.

The cache is a folder for each fingerprint of rows and settings, in ``XDG_CACHE_HOME`` or ``~/.cache``::

    pass-00002.safetensors  the model after its last pass, and after its best one
    state.json              passes taken, losses, and the checksums of the other files; sealed
    vectors.safetensors     the vectors of every table, once it is trained

``state.json`` is written last and makes the rest valid, so that a training resumes after its last complete pass. What
is damaged is trained again. A process that trains holds the folder (:mod:`~ziggurat.features.preparation.proxy.cache`),
and others wait. The oldest folders are deleted above 4 GiB.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Generator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from ziggurat.core.digests import FileChecksum, load_tensors
from ziggurat.core.errors import ConfigError, DataError
from ziggurat.core.files import atomic_file
from ziggurat.core.progress import Progress
from ziggurat.core.sealed import declared, read_sealed_json, write_sealed_json
from ziggurat.data.encoded.split import TRAIN, VALIDATION, Assignment
from ziggurat.features.config import FeatureConfig
from ziggurat.features.encoders.compressed.clusters import Weights
from ziggurat.features.encoders.compressed.learned_hash import LearnedMapSettings
from ziggurat.features.encoders.compressed.mapped import Parts
from ziggurat.features.encoders.encoder import ProxySettings
from ziggurat.features.negatives_config import InBatchNegatives
from ziggurat.features.preparation.parts import StagedParts
from ziggurat.features.preparation.proxy.cache import cache_folder, held, prune
from ziggurat.features.preparation.proxy.composed import cluster_all, composed_model
from ziggurat.features.preparation.proxy.factorisation import Factorisation, Floats, logit_coordinates
from ziggurat.features.preparation.proxy.learned import DAMAGED_PROXY, Learned
from ziggurat.features.preparation.proxy.rows import ProxyRows
from ziggurat.features.preparation_plan import Preparation, dataset_settings, fingerprint

PROXY_VERSION = 3
_STATE, _VECTORS = "state.json", "vectors.safetensors"
_BATCH = (64, 8192)
_STEPS = 200
"""Steps of a pass at least, unless batches would be smaller than the smallest."""
_RATE, _DECAY = 0.2, 0.02
_PATIENCE = 2
"""Passes without a better loss after which training stops."""
_WITHOUT_VALIDATION = 3
"""Passes at most where no validation rows say when to stop."""


@contextlib.contextmanager
def trained_proxies(
    plan: Preparation, parts: StagedParts, assignments: Sequence[Assignment], staging: Path, progress: Progress
) -> Generator[dict[ProxySettings, Learned]]:
    """Yields what the proxies learned that encoders of the plan ask for; those of the cache are not trained again.

    While the context lasts, no other preparation deletes their files.

    Raises:
        ConfigError: there are no labels to learn from before training.
        DataError: the disk is full.
    """
    wanted = list(dict.fromkeys(table.encoder.proxy for table in plan.tables.values() if table.encoder.proxy))
    if not wanted:
        yield {}
        return
    if isinstance(plan.data.negatives, InBatchNegatives):
        raise ConfigError(
            "data.negatives: in_batch negatives are made while training, so that the proxy of a learned encoder has no "
            "rows to learn from",
            "choose data.negatives of uniform or popularity, or another encoder",
        )
    rows = fingerprint_of_rows(plan)
    found: dict[ProxySettings, Learned] = {}
    numbered: ProxyRows | None = None
    with contextlib.ExitStack() as holding:
        for settings in wanted:
            composed = _composed(plan, settings)
            folder = cache_folder() / _key(rows, settings, composed)
            trained = False
            while (learned := _shared(folder, holding, progress)) is None:
                with held(folder, progress, shared=False):
                    if _finished(folder) is None:
                        numbered = numbered or ProxyRows.number(plan, parts, assignments, staging, TRAIN)
                        _train(numbered, settings, composed, folder, progress)
                        trained = True
            if not trained:
                with contextlib.suppress(OSError):  # of another user, or read-only
                    os.utime(folder)
                progress.note(f"proxy of {settings.dim} numbers a value: taken from {folder}")
            found[settings] = learned
        prune()
        yield found


def _shared(folder: Path, holding: contextlib.ExitStack, progress: Progress) -> Learned | None:
    """Returns what a finished proxy learned, and holds its folder with others; None, and holds nothing, if there is
    none."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(held(folder, progress, shared=True))
        learned = _finished(folder)
        if learned is not None:
            holding.push(stack.pop_all())
        return learned


def fingerprint_of_rows(plan: Preparation) -> str:
    """Returns a fingerprint of the rows that a proxy is trained on; the encoders do not matter."""
    plain = [_without_encoder(feature) for feature in plan.configured]
    return fingerprint(plan.data, plain, plan.sources, {})


def _without_encoder(feature: FeatureConfig) -> FeatureConfig:
    settings = dataset_settings(feature)
    return feature.model_copy(update={"encoder": None}) if "encoder" in settings else feature


def _key(rows: str, settings: ProxySettings, parts: Mapping[str, Parts]) -> str:
    content = json.dumps([PROXY_VERSION, rows, asdict(settings), {name: asdict(each) for name, each in parts.items()}])
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def _composed(plan: Preparation, settings: ProxySettings) -> dict[str, Parts]:
    """Returns table -> how its rows are divided, of the tables that have their encoder's rows in this proxy."""
    if not settings.clusterings:
        return {}
    encoders = {name: table.encoder for name, table in plan.tables.items() if table.encoder.proxy == settings}
    return {name: each.parts for name, each in encoders.items() if isinstance(each, LearnedMapSettings)}


def _train(
    rows: ProxyRows, settings: ProxySettings, parts: Mapping[str, Parts], folder: Path, progress: Progress
) -> Learned:
    count, held_out = rows.count(TRAIN), rows.count(VALIDATION)
    batch = int(np.clip(2 ** int(np.log2(max(1, count / _STEPS))), *_BATCH))
    passes = settings.passes if held_out else min(settings.passes, _WITHOUT_VALIDATION)
    clusterings = min(settings.clusterings, passes - 1)
    if parts:
        model, tables = composed_model(rows, parts, settings.dim, settings.seed)
    else:
        model, tables = Factorisation.initial(rows.keys_V, settings.dim, settings.seed, logistic=rows.logistic), []
    losses = _restored(folder, model, "last")
    if losses:
        progress.note(f"resuming the proxy after {len(losses)} passes")
    progress.start("proxy", float(passes * count), "rows")
    for number in range(len(losses), passes):
        if number > clusterings and number - 1 - _best(losses, clusterings) >= _PATIENCE:
            break
        if 0 < number <= clusterings:
            cluster_all(tables, model, rows, number, settings.seed)
        random = np.random.default_rng([settings.seed, number])
        done = float(number * count)
        for pool in rows.pools(TRAIN, random):
            for start in range(0, len(pool), batch):
                model.step(pool.slice(start, start + batch), _RATE, _DECAY)
                done += min(batch, len(pool) - start)
                progress.advance(done)
        losses.append(_loss(model, rows, VALIDATION if held_out else TRAIN, batch))
        _save_pass(folder, model, losses, clusterings)
    if not _restored(folder, model, "best"):
        raise DAMAGED_PROXY.of(folder, "the proxy after its best pass is gone")
    best = _best(losses, clusterings)
    progress.finish(f"loss {losses[best]:.4f} after pass {best + 1} of {len(losses)}")
    return _save_vectors(folder, model, rows, losses)


def _restored(folder: Path, model: Factorisation, which: Literal["last", "best"]) -> list[float]:
    """Gives a model the numbers after its last or its best pass; returns the losses of all passes, none if it is left
    as it was."""
    state = _state(folder)
    saved = None if state is None else state.last if which == "last" else state.best
    if state is not None and saved is not None:
        try:
            arrays = load_tensors(folder / Path(saved.name).name, saved.file, DAMAGED_PROXY)
            own = _arrays(model)
            if own.keys() == arrays.keys() and all(arrays[name].shape == each.shape for name, each in own.items()):
                for name, each in own.items():
                    each[:] = arrays[name]
                return list(state.losses)
        except (FileNotFoundError, DataError):
            pass
    return []


def _arrays(model: Factorisation) -> dict[str, npt.NDArray[Any]]:
    """Returns what is saved of a model, by name."""
    composed = {} if model.rows_VC is None else {"rows": model.rows_VC}
    return {"weights": model.weights_RE, "squares": model.squares_RE, **composed}


def _best(losses: Sequence[float], clusterings: int) -> int:
    """Returns the pass with the least loss, counted from 0, of those after the last clustering; before it the last."""
    if len(losses) <= clusterings:
        return len(losses) - 1
    return clusterings + int(np.argmin(losses[clusterings:]))


def _loss(model: Factorisation, rows: ProxyRows, split: int, batch: int) -> float:
    total = weight = 0.0
    for pool in rows.pools(split):
        for start in range(0, len(pool), batch):
            some = pool.slice(start, start + batch)
            total += float((model.losses(some) * some.importance_B).sum())
            weight += float(some.importance_B.sum())
    return total / max(weight, 1e-300)


def _save_vectors(folder: Path, model: Factorisation, rows: ProxyRows, losses: list[float]) -> Learned:
    inputs = [range(table.start, table.stop) for table in rows.tables.values()]
    arrays = dict(zip(rows.tables, logit_coordinates(model, rows.pools(TRAIN), inputs), strict=True))
    with atomic_file(folder / _VECTORS) as temporary:
        save_file(arrays, temporary)
    checksum = FileChecksum.of(folder / _VECTORS, DAMAGED_PROXY)
    digests = {name: table.digest for name, table in rows.tables.items()}
    counts_V = rows.lookups(TRAIN)
    importance = {name: _spread(arrays[name], counts_V[each.start : each.stop]) for name, each in rows.tables.items()}
    _State(losses, None, None, checksum, digests, importance).write(folder)
    for old in folder.glob("pass-*.safetensors"):
        old.unlink(missing_ok=True)
    return Learned(folder / _VECTORS, checksum, digests, losses, importance)


def _save_pass(folder: Path, model: Factorisation, losses: list[float], clusterings: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"pass-{len(losses):05d}.safetensors"
    with atomic_file(path) as temporary:
        save_file(_arrays(model), temporary)
    saved = _Saved(path.name, FileChecksum.of(path, DAMAGED_PROXY))
    before = _state(folder)
    best = saved
    if before is not None and before.best is not None and losses[_best(losses, clusterings)] != losses[-1]:
        best = before.best
    _State(losses, saved, best, None, {}, {}).write(folder)
    for old in folder.glob("pass-*.safetensors"):
        if old.name not in {saved.name, best.name}:
            old.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class _Saved:
    """A saved model: the name of its file, and the file's checksum."""

    name: str
    file: FileChecksum


@dataclass(frozen=True, slots=True)
class _State:
    """What ``state.json`` records.

    Attributes:
        losses: the loss after each pass.
        last, best: the models after the last and the best pass; None once training has finished.
        vectors: the checksum of the vectors, once it has.
        digests, importance: as of :class:`Learned`.
    """

    losses: list[float]
    last: _Saved | None
    best: _Saved | None
    vectors: FileChecksum | None
    digests: dict[str, str]
    importance: dict[str, float]

    def write(self, folder: Path) -> None:
        write_sealed_json(folder / _STATE, asdict(self))


def _state(folder: Path) -> _State | None:
    """Returns what is recorded; None if nothing usable is."""
    path = folder / _STATE
    try:
        return declared(_State, read_sealed_json(path, DAMAGED_PROXY), path, DAMAGED_PROXY)
    except (FileNotFoundError, DataError):
        return None


def _finished(folder: Path) -> Learned | None:
    """Returns what a finished proxy learned; None if it is not finished, or damaged."""
    state = _state(folder)
    if state is None or state.vectors is None:
        return None
    try:
        state.vectors.check(folder / _VECTORS, DAMAGED_PROXY)
    except (FileNotFoundError, DataError):
        return None
    return Learned(folder / _VECTORS, state.vectors, state.digests, state.losses, state.importance)


def _spread(vectors_ND: Floats, counts_N: Weights) -> float:
    """Returns the mean squared distance of looked-up vectors from their mean."""
    if not counts_N.any():
        return 0.0
    mean_D = counts_N @ vectors_ND / counts_N.sum()
    return float(counts_N @ ((vectors_ND - mean_D) ** 2).sum(axis=1) / counts_N.sum())


def importance_of_tables(plan: Preparation, settings: ProxySettings) -> dict[str, float] | None:
    """Returns how important each table is to a proxy that an earlier preparation of these rows trained; None: none did.

    Args:
        plan: the plan of a preparation.
        settings: the settings of the proxy.
    """
    found = _finished(cache_folder() / _key(fingerprint_of_rows(plan), settings, _composed(plan, settings)))
    return None if found is None else found.importance

"""Applies a documented power model (:mod:`bench.serving.power_model`) to what serving_sdm measured.

Nothing is measured here but what that benchmark has stored: the rate at equal p99 with room for a fifth of the tables,
as a share of the rate with all of them in memory. Watts are not measured at all.
"""

from __future__ import annotations

import statistics
from typing import Any

from bench import results
from bench.benchmark import Benchmark, Context, Figure, Result, Target
from bench.contestant import ROOT
from bench.serving import serving_sdm
from bench.serving.power_model import PLATFORMS, PUBLISHED, variants
from bench.small_memory import unavailable
from bench.system.row_contestants import without_rocksdb
from ziggurat.core.errors import EnvironmentMismatch

MEMORY_SHARE = 20
CANDIDATES = (100, 1, 1000)
"""Candidates of a request, by preference, whose rates are taken: those of a ranking first."""


def run(context: Context) -> Result:
    candidates, samples, origin = _measured(context)
    shares = tuple(min(1.0, each / 100) for each in samples)
    share = statistics.median(shares)
    figures = [
        Figure("rate_kept", "% of the rate", tuple(100 * each for each in shares), f"B = {candidates}, measured")
    ]
    cases = [("platform", "what it is", "all in memory", "with drives", "saving", "largest and least saving")]
    within = 0
    for name, platform in PLATFORMS.items():
        savings = tuple(platform.saving(MEMORY_SHARE / 100, each) for each in shares)
        middle = platform.saving(MEMORY_SHARE / 100, share)
        within += PUBLISHED[0] <= middle <= PUBLISHED[1]
        figures.append(Figure(f"{name}.saving", "%", savings, f"of power; {platform.title}"))
        changed = {
            what: other.saving(MEMORY_SHARE / 100, rate) for what, (other, rate) in variants(platform, share).items()
        }
        figures += [Figure(f"{name}, {what}", "% saved if", (value,)) for what, value in changed.items()]
        watts = platform.watts(1.0, 0), platform.watts(MEMORY_SHARE / 100, platform.drives)
        span = f"{max(changed.values()):.1f} %, {min(changed.values()):.1f} %"
        what = f"{platform.title}: {platform.base_w:g} W without memory, tables of {platform.tables_gb:g} GB"
        cases.append((name, what, f"{watts[0]:.0f} W", f"{watts[1]:.0f} W", f"{middle:.1f} %", span))
    published = f"{PUBLISHED[0]:g} to {PUBLISHED[1]:g} %"
    figures.append(
        Figure("platforms_within", "of 3", (float(within),), f"whose saving is within the published {published}")
    )
    notes = (
        f"rates: {origin}",
        "watts are those of the documented model, not measured: .375 W a GB of memory, 12 W a drive, hosts as stated",
        f"the published {published} are of other platforms (arXiv 2110.11489)",
    )
    return Result(tuple(figures), 0, len(samples), notes, cases=tuple(cases))


def _measured(context: Context) -> tuple[int, tuple[float, ...], str]:
    """Returns the candidates of a request, the shares of the rate in per cent, and where they are from.

    Raises:
        EnvironmentMismatch: serving_sdm has stored no result.
    """
    stored = results.load(ROOT, serving_sdm.SERVING_SDM.name)
    if stored is not None:
        figures: list[dict[str, Any]] = stored["figures"]
        origin = f"serving_sdm of {stored['date'][:10]}, commit {(stored['commit'] or 'unknown')[:12]}"
        return *_found({each["name"]: tuple(each["samples"]) for each in figures}), origin
    if not context.quick:
        raise EnvironmentMismatch(
            "serving_sdm has stored no result, to which the power model is applied",
            "run it first: python -m bench run serving_sdm",
        )
    found = serving_sdm.run(context)
    return *_found({each.name: each.samples for each in found.figures}), "a quick run of serving_sdm"


def _found(samples: dict[str, tuple[float, ...]]) -> tuple[int, tuple[float, ...]]:
    names = {count: f"b{count}.{MEMORY_SHARE}.of_dram" for count in CANDIDATES}
    count = next(count for count in CANDIDATES if names[count] in samples)
    return count, samples[names[count]]


def _lacks() -> str | None:
    if results.load(ROOT, serving_sdm.SERVING_SDM.name) is not None:
        return None
    return unavailable() or without_rocksdb()


SERVING_POWER = Benchmark(
    name="serving_power",
    claim="What drives in place of memory save of the power by the documented model and the measured rates; asked is a "
    "saving within the published 5 to 29 %.",
    targets={"platforms_within": Target(3.0)},
    depends_on=("bench/serving/serving_power.py", "bench/serving/power_model.py"),
    run=run,
    missing=_lacks,
)

"""The benchmarks of the leaderboards, with their claims and targets."""

from statistics import fmean

from bench.benchmark import Figure, Target
from bench.quality.planted import PLANTED
from bench.quality.quality import Outcomes, published_within, quality

TOLERANCE = 0.0015
"""The AUC by which a baseline may be below the figure of the public leaderboard."""

QUALITY_FRAPPE = quality(
    "frappe",
    "On Frappe every baseline is as good as on the public board, and Wukong better than the best published model.",
    {
        **published_within("frappe", "auc", TOLERANCE),
        "wukong.auc": Target(0.9868),
        "wukong.log_loss": Target(0.131, "at most"),
    },
)

QUALITY_MOVIELENS = quality(
    "movielens",
    "On MovieLens-100K the deep models are at least as good as a tuned LightGBM (.7957 AUC).",
    {"deepfm.auc": Target(0.7957), "wukong.auc": Target(0.7957)},
)


def below_lightgbm(outcomes: Outcomes) -> list[Figure]:
    """Returns by how many percent the RMSE of each other model is below LightGBM's of the same seed."""

    def errors(name: str) -> list[float]:
        return [seed["figures"]["test"]["rmse"] for seed in outcomes[name]]

    rival = errors("lightgbm")
    return [
        Figure(f"{name}.below_lightgbm", "%", gains, statistic="mean")
        for name in outcomes
        if name != "lightgbm"
        for gains in [tuple(100 * (1 - ours / theirs) for ours, theirs in zip(errors(name), rival, strict=True))]
    ]


QUALITY_MOVIELENS_RATINGS = quality(
    "movielens_ratings",
    "On the ratings of MovieLens-100K, DeepFM has a lower RMSE than LightGBM, both tuned on the same validation rows.",
    {"deepfm.below_lightgbm": Target(0.0)},
    derive=below_lightgbm,
    baselines=True,
)

QUALITY_CENSUS = quality(
    "census",
    "On Census-Income with two tasks, PLE is as good as the best published multi-task model.",
    {"ple.income/auc": Target(0.9583), "ple.never_married/auc": Target(0.9951)},
)


def published_order(outcomes: Outcomes) -> list[Figure]:
    """Returns by how many percent the log-loss increases without each part of Wukong.

    ``no_fm.above_next`` is the difference between the increase without the FM block and the next largest increase.
    """
    losses = {name: [seed["figures"]["test"]["log_loss"] for seed in seeds] for name, seeds in outcomes.items()}
    worse = {
        name: tuple(100 * (loss / whole - 1) for loss, whole in zip(losses[name], losses["whole"], strict=True))
        for name in losses
        if name != "whole"
    }
    next_worst = [max(pair) for pair in zip(worse["no_shortcut"], worse["no_linear"], strict=True)]
    above = tuple(a - b for a, b in zip(worse["no_fm"], next_worst, strict=True))
    return [
        *(Figure(f"{name}.worse", "%", values, statistic="mean") for name, values in worse.items()),
        Figure("no_fm.above_next", "%", above, statistic="mean"),
    ]


WUKONG_ABLATION = quality(
    "wukong_ablation",
    "Of Wukong's parts, the factorization machine block contributes most to its quality.",
    {"no_fm.above_next": Target(0.0)},
    name="wukong_ablation",
    derive=published_order,
)


def best_pair(outcomes: Outcomes) -> list[Figure]:
    """Returns by how many percent the best ensemble's NE is below the best block's; validation selects both."""

    def chosen(names: list[str]) -> str:
        return min(names, key=lambda name: fmean(seed["figures"]["validation"]["ne"] for seed in outcomes[name]))

    ensemble, single = chosen([name for name in outcomes if "+" in name]), chosen([n for n in outcomes if "+" not in n])
    pairs = zip(outcomes[ensemble], outcomes[single], strict=True)
    gain = tuple(100 * (1 - ours["figures"]["test"]["ne"] / other["figures"]["test"]["ne"]) for ours, other in pairs)
    names = (f"{ensemble} over {single}", "best")
    return [Figure(f"{name}.ne_gain", "%", gain, statistic="mean") for name in names]


DHEN_ENSEMBLE = quality(
    "dhen_frappe",
    "An ensemble of interaction blocks has a lower NE than its best single block at equal FLOPs.",
    {"best.ne_gain": Target(0.27)},
    name="dhen_ensemble",
    derive=best_pair,
)

DHEN_PLANTED = quality(
    "dhen_planted",
    "On generated data, too, an ensemble of interaction blocks has a lower NE than its best block at equal FLOPs.",
    {"best.ne_gain": Target(0.27)},
    name="dhen_planted",
    derive=best_pair,
    generated=PLANTED,
)

"""The Frappe board."""

from bench.benchmark import Target
from bench.quality.quality import published_within, quality

TOLERANCE = 0.0015
"""AUC by which a baseline may fall short of the board's figure."""

QUALITY_FRAPPE = quality(
    "frappe",
    "On Frappe every baseline is as good as on the public board, and Wukong better than the best published model.",
    {
        **published_within("frappe", "auc", TOLERANCE),
        "wukong.auc": Target(0.9868),
        "wukong.log_loss": Target(0.131, "at most"),
    },
)

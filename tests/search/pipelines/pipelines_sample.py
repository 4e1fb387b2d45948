"""A search of pipelines with a hostile name, for tests of its page."""

from __future__ import annotations

import numpy as np

from ziggurat.search.pipelines.found import Episode, FoundPipelines, Trial
from ziggurat.search.pipelines.pipeline import CategoricalPipeline, NumericPipeline

HOSTILE = "</style><script>alert('x')</script> & \"quoted\" \x07 <img src=http://evil.example/x.png>"


def sample() -> FoundPipelines:
    """Returns a search of four columns in two clusters, with three episodes."""
    power, spline = NumericPipeline(scaler="power"), NumericPipeline(scaler="none", discretiser="spline")
    chosen = {HOSTILE: power, "age": power, "income": spline, "city": CategoricalPipeline(encoder="target")}
    standard = {name: NumericPipeline() for name in chosen} | {"city": CategoricalPipeline()}
    trials = (
        Trial(0, "standard", standard, 0, (0.7, 0.72), 0.5),
        Trial(1, "episode", chosen, 0, (0.8, 0.82), 0.6),
        Trial(2, "episode", dict.fromkeys(chosen, spline), 0, (), 0.1, f"cannot: {HOSTILE}"),
        Trial(3, "finalist", standard, 1, (0.69, 0.71), 0.5),
        Trial(4, "finalist", chosen, 1, (0.77, 0.79), 0.6),
    )
    losses = {"policy": -0.1, "kl": 0.3, "reconstruction": 0.2}
    episodes = tuple(
        Episode(number, reward, baseline, losses, (0, 0, 1, 1), entropy)
        for number, (reward, baseline, entropy) in enumerate([(0.7, 0.7, 1.0), (0.81, 0.7, 0.8), (0.8, 0.73, 0.5)])
    )
    return FoundPipelines(
        method="cluster", pipelines=chosen, clusters=dict(zip(chosen, (0, 0, 1, 1), strict=True)),
        score=0.78, search_score=0.81, standard=0.70, evaluations=5, seconds=12.0, trials=trials, episodes=episodes,
        descriptors=np.arange(8.0).reshape(4, 2), descriptor_names=("skew", "kurtosis"),
        coordinates=np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]]),
    )  # fmt: skip

"""Draws a search of pipelines: columns in the plane of their clusters, rewards and entropies over episodes, scores."""

from __future__ import annotations

from collections.abc import Sequence

from ziggurat.report.markup import Html, el
from ziggurat.report.numbers import short
from ziggurat.report.svg import Axes, padded
from ziggurat.search.pipelines.found import Episode, FoundPipelines
from ziggurat.search.pipelines.pipeline import title

CLASSES = ("first", "second", "third", "fourth")
"""Colours of the first clusters; further ones are grey, and their numbers tell them apart."""
LABELLED = 40
"""Up to so many columns have their names beside them; those of more are in tooltips only."""
_SIZE, _EDGE, _RADIUS = 360, 26, 7.5
_NAME = 18


def colour(cluster: int) -> str:
    """Returns the class of a cluster's colour."""
    return CLASSES[cluster] if cluster < len(CLASSES) else "quiet"


def feature_map(found: FoundPipelines) -> Html:
    """Draws every column at its coordinates, in the colour of its cluster and with its number."""
    xs, ys = found.coordinates[:, 0], found.coordinates[:, 1]
    span = max(float(xs.max() - xs.min()), float(ys.max() - ys.min()), 1e-9)  # one scale: distances are comparable
    unit = (_SIZE - 2 * _EDGE) / span
    left = (_SIZE - unit * float(xs.max() - xs.min())) / 2
    height = 2 * _EDGE + unit * float(ys.max() - ys.min())
    marks: list[Html] = []
    for at, (name, cluster) in enumerate(found.clusters.items()):
        x, y = left + unit * float(xs[at] - xs.min()), _EDGE + unit * float(ys.max() - ys[at])
        marks.append(
            el(
                "g",
                el("title", f"{name}: cluster {cluster}, {title(found.pipelines[name])}"),
                el("circle", cls=f"dot {colour(cluster)}", cx=f"{x:.1f}", cy=f"{y:.1f}", r=_RADIUS),
                el("text", cluster, cls="on", x=f"{x:.1f}", y=f"{y:.1f}", dy="0.35em", text_anchor="middle"),
                _label(name, x, y) if len(found.clusters) <= LABELLED else None,
                tabindex=0,
                role="img",
                aria_label=f"{name}: cluster {cluster}, {title(found.pipelines[name])}",
            )
        )
    description = f"Map of {len(found.clusters)} columns in {len(set(found.clusters.values()))} clusters"
    return el("svg", *marks, viewBox=f"0 0 {_SIZE} {height:.0f}", role="group", aria_label=description)


def _label(name: str, x: float, y: float) -> Html:
    right = x < _SIZE / 2
    shown = name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"
    at = x + (_RADIUS + 3) * (1 if right else -1)
    return el("text", shown, x=f"{at:.1f}", y=f"{y:.1f}", dy="0.35em", text_anchor="start" if right else "end")


def rewards(episodes: Sequence[Episode], metric: str) -> Html:
    """Draws the reward of each episode as a dot and the moving baseline as a line."""
    xs = [float(each.number) for each in episodes]
    ys, baseline = [each.reward for each in episodes], [each.baseline for each in episodes]
    axes = Axes((0.0, max(*xs, 1.0)), padded([*ys, *baseline]), "episode")
    dots = [
        el(
            "g",
            el("title", f"episode {each.number}: {short(each.reward)}, baseline {short(each.baseline)}"),
            el("circle", cls="dot first", cx=f"{axes.x(x):.1f}", cy=f"{axes.y(each.reward):.1f}", r=2.6),
        )
        for x, each in zip(xs, episodes, strict=True)
    ]
    words = f"Reward ({metric}) of {len(episodes)} episodes, from {short(ys[0])} to {short(ys[-1])}"
    return axes.draw(words, axes.line(xs, baseline, "second"), *dots)


def over_episodes(name: str, episodes: Sequence[Episode], values: Sequence[float]) -> Html:
    """Draws one value an episode as a line."""
    xs = [float(each.number) for each in episodes]
    axes = Axes((0.0, max(*xs, 1.0)), padded(values), "episode")
    return axes.draw(f"{name} over {len(episodes)} episodes, last {short(values[-1])}", axes.line(xs, values, "first"))


def scores(found: FoundPipelines) -> Html:
    """Draws each evaluation's score as a dot, the best so far as a line, and standard scaling as a dashed line."""
    done = [each for each in found.trials if each.scores and not each.repeat]
    xs, ys = [float(each.number) for each in done], [each.score for each in done]
    best = [max(ys[: at + 1]) for at in range(len(ys))]
    axes = Axes((0.0, max(*xs, 1.0)), padded([*ys, found.standard]), "evaluation")
    dots = [
        el(
            "g",
            el("title", f"evaluation {each.number} ({each.origin}): {short(each.score)}"),
            el("circle", cls="dot quiet", cx=f"{axes.x(x):.1f}", cy=f"{axes.y(each.score):.1f}", r=2.2),
        )
        for x, each in zip(xs, done, strict=True)
    ]
    low, high = axes.x_range
    standard = axes.line([low, high], [found.standard] * 2, "reference")
    words = f"Scores of {len(done)} evaluations, the best {short(best[-1])}, standard scaling {short(found.standard)}"
    return axes.draw(words, standard, *dots, axes.line(xs, best, "first"))

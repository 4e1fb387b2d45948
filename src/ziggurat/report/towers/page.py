"""Renders a partition of features among towers as one self-contained HTML page: the map, the loads, the towers."""

from __future__ import annotations

from pathlib import Path

from ziggurat.core.files import atomic_file
from ziggurat.report.html import page
from ziggurat.report.markup import Html, el, figure, section, table
from ziggurat.report.numbers import count, percent, short
from ziggurat.report.towers.drawings import affinity_matrix, colour, feature_map, load_bars
from ziggurat.towers.partitioner.partition import Partition


def write_partition(path: str | Path, name: str, partition: Partition, source: str | Path) -> None:
    """Writes the page of a partition atomically.

    Args:
        path: the file.
        name: name of the experiment.
        partition: the partition.
        source: the run that it was made from.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_file(Path(path)) as temporary:
        temporary.write_text(render_partition(name, partition, source), encoding="utf-8")


def render_partition(name: str, partition: Partition, source: str | Path) -> str:
    """Returns the page; equal partitions give equal bytes."""
    return page(
        f"{name} – ziggurat towers",
        _header(name, partition, source),
        [_map(partition), _loads(partition), _towers(partition)],
    )


def tower_rows(partition: Partition) -> list[list[str]]:
    """Returns a line for each tower: its number, its features, how many they are, its load and that as a share."""
    total = sum(partition.loads) or 1.0
    return [
        [str(number), ", ".join(features), count(len(features)), short(load), percent(load / total)]
        for number, (features, load) in enumerate(zip(partition.towers, partition.loads, strict=True))
    ]


def summary(partition: Partition) -> str:
    """Returns what was found, in a sentence."""
    within, between = partition.affinities
    return (
        f"The most loaded tower has {partition.load_ratio:.2f}× the mean load; two features of one tower have a mean "
        f"affinity of {short(within)}, of different towers {short(between)}."
    )


def _header(name: str, partition: Partition, source: str | Path) -> Html:
    within, between = partition.affinities
    kind = "those that interact least together" if partition.diverse else "those that interact most together"
    terms = [
        ("towers", count(len(partition.towers)), f"of {len(partition.features)} features"),
        ("greatest load", f"{partition.load_ratio:.2f}×", "of the mean"),
        ("affinity within a tower", short(within), f"{short(between)} between towers"),
    ]
    headline = [el("div", el("dt", term), el("dd", value, el("small", note))) for term, value, note in terms]
    return el(
        "header",
        el("h1", f"{name}: features in towers"),
        el("p", f"{kind}, from the vectors of {source}", cls="soft"),
        el("dl", *headline, cls="headline"),
    )


def _map(partition: Partition) -> Html:
    meaning = "the less two features interact" if not partition.diverse else "the more two features interact"
    reading = (
        f"A dot is a feature, with the number of its tower; the further apart, {meaning}. Distances in the plane "
        f"differ by {partition.map_error:.2f} (root mean square) from the affinities, by which the towers were decided."
    )
    matrix = "Opacity is the affinity of two features: 0 is invisible, 1 is full. Frames are towers."
    return section(
        "map",
        "Features",
        el(
            "div",
            figure(reading, feature_map(partition), caption="Map"),
            figure(matrix, affinity_matrix(partition), caption="Affinities"),
            cls="figures",
        ),
        el(
            "p",
            "The affinity of two features is the mean of |cos| between their vectors over validation rows of the flat "
            "model, without what all features share: their means, and the direction that the means have most of.",
            cls="soft",
        ),
    )


def _loads(partition: Partition) -> Html:
    reading = "A segment is a feature. The dashed line is the mean."
    note = "The load of a table is its look-ups an example times its width; features of one table share it equally."
    return section("loads", "Loads", figure(reading, load_bars(partition)), el("p", note, cls="soft"))


def _towers(partition: Partition) -> Html:
    rows: list[list[object]] = []
    for tower, (number, names, *numbers) in enumerate(tower_rows(partition)):
        swatch = el("span", cls="swatch", style=f"border-color:{colour(tower, len(partition.towers))}")
        rows.append([el("span", swatch, number), el("span", names, cls="wrap"), *numbers])
    return section(
        "towers", "Towers", table(["Tower", "Features", "Count", "Load", "Share of the load"], rows, text_columns=2)
    )

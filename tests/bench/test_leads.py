"""Leads state how often and how surely they are leads."""

from __future__ import annotations

from bench.leads import lead


def test_a_lead_counts_seeds_that_are_ahead_and_level() -> None:
    figure = lead("ours.lead", "%", [1.0, 0.0, -1.0, 4.0], "a seed each")
    assert figure.value == 1.0
    assert figure.samples == (1.0, 0.0, -1.0, 4.0)
    assert figure.note.startswith("a seed each; ahead in 2 of 4, level in 1; 95 % interval -")
    assert lead("ours.lead", "", [2.0, 2.0], "").note.endswith("95 % interval 2 to 2")

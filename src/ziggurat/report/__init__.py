"""Self-contained HTML reports of runs, plans and scaling sweeps, and the baselines that a run is compared with.

In: a run folder. Out: one HTML file that makes no external request, with baselines trained on the same columns.
Neighbours: ``training`` evaluates the run, ``metrics`` computes the curves. Start at :mod:`~ziggurat.report.gather`.
"""

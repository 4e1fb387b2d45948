"""What a run amounted to, on one page: the self-contained HTML report and the baselines it compares with.

In: a run folder. Out: one HTML file without any external request, with baselines trained on the same columns.
Neighbours: ``training`` evaluates the run, ``metrics`` makes the curves. Start at :mod:`~ziggurat.report.gather`.
"""

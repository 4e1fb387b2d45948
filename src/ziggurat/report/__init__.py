"""What a run amounted to, on one page: the self-contained HTML report and the baselines it compares with.

In: plain figures (:class:`~ziggurat.report.inputs.ReportInputs`) gathered from a run folder; for the baselines, encoded
columns as numpy arrays. Out: one HTML string without any external request; baseline probabilities. Neighbours:
``metrics`` makes the curves, ``cli`` gathers the inputs. Start at :mod:`~ziggurat.report.html`.
"""

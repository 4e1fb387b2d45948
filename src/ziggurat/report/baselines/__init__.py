"""The baselines that a report compares a run with, trained on the same encoded columns.

In: an encoded dataset. Out: metrics of LightGBM and logistic regression, stored for later reports.
"""

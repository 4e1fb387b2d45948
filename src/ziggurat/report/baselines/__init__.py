"""The baselines that a report compares a run with, trained on the same encoded columns.

In: an encoded dataset. Out: figures of LightGBM and logistic regression, kept for later reports.
"""

"""Heads map the representation of a row to one logit per task.

In: (B, N). Out: (B, T). ``models.heads`` lists them.
"""

"""Sequence encoders pool the vectors of a sequence's positions into one vector.

In: (B, S, D) with a mask and optionally a target (B, D). Out: (B, D). ``sequence_pooling`` lists them.
"""

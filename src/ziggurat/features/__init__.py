"""Fitted features: they encode raw blocks as record batches, in the same way for training, evaluation and prediction.

In: blocks from the readers of ``data``, and the ``data`` and ``features`` configs. Out: :class:`Transform`, and
:func:`prepare`, which fits it on the training rows and writes an encoded dataset with statistics. Neighbours: ``data``
below does not depend on encoders; ``embeddings`` above sees only row numbers.
"""

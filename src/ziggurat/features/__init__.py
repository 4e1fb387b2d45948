"""Fitted features: raw blocks in, encoded record batches out, the same in training, evaluation and prediction.

In: ``data`` readers' blocks and the ``data`` and ``features`` configs. Out: :class:`Transform`, and :func:`prepare`,
which fits it on the training rows and leaves an encoded dataset with statistics on disk. Neighbours: ``data`` below
knows nothing of encoders; ``embeddings`` above sees only row numbers.
"""

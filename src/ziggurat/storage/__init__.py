"""Out-of-core table rows: row stores in DRAM and on block devices, and a cache that prefetches what batches need.

In: row ids. Out: rows of float32 numbers. Nothing here depends on torch, features or models. Neighbours:
``embeddings`` keeps the rows of offloaded tables here, ``planning`` decides which tables those are.
"""

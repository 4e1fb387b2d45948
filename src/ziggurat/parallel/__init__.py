"""Several ranks that train one model: launching them, agreement between them, and data parallelism of the dense part.

In: a process group and a dense module. Out: the same module, whose gradients are those of the global batch. Neighbours:
``embeddings`` shards the tables, ``training`` contains the loop.
"""

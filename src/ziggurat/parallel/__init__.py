"""Several ranks that train one model: how they are started, how they agree, how the dense part is spread over them.

In: a process group and a dense module. Out: the same module, whose gradients are those of the global batch. Neighbours:
``embeddings`` spreads the tables, ``training`` has the loop.
"""

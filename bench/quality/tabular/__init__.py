"""Real tables with labels, in memory: what the benchmark ``p3s`` compares preprocessing pipelines on.

In: the package index, scikit-learn's own tables, ``--data`` and a generator. Out: for each set its columns with their
kinds, and a class for each row.
"""

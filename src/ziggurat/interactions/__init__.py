"""Pure tensor blocks over field embeddings, of which models are composed.

In: (B, F, D), or dense features (B, F) for the two embeddings of numbers. Out: (B, F', D), or (B, n) from a head.
Neighbours: ``models`` composes blocks. Blocks know nothing of tables, ranks, labels or files. Import the submodules.
"""

"""Interaction blocks (B, F, D) → (B, F', D) that a DHEN or Wukong layer can combine.

In: field embeddings. Out: field embeddings. ``composable`` lists all blocks; ``ensemble`` and ``stack`` combine them.
"""

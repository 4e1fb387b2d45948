"""Interaction blocks (B, F, D) → (B, F', D) that can stand side by side in a DHEN or Wukong layer.

In: field embeddings. Out: field embeddings. ``composable`` lists all blocks; ``ensemble`` and ``stack`` combine them.
"""

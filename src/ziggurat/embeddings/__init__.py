"""Ids to vectors: embedding tables placed by a Plan, looked up and updated through TorchRec.

In: a ``Batch``'s bags and sequences, a list of ``TableSpec`` and a ``Plan``. Out: emb_BFD, one vector a feature.
Neighbours: ``features`` decides which tables exist; ``models`` consume the vectors.
"""

"""Where checkpoints are stored: local folders and object stores, and the exclusive right to write to them.

In: names and bytes. Out: files that are either complete or absent, a lease, a claim.
Neighbours: ``checkpoint.folder`` knows which of those files form a checkpoint.
"""

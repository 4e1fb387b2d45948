"""Where checkpoints are stored: local folders and object stores, and the exclusive right to write to them.

In: names and bytes. Out: files that are either complete or absent, and a claim to be the
store's only writer, which in an object store is a lease.
Neighbours: ``checkpoint.folder`` knows which of those files form a checkpoint.
"""

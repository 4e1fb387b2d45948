"""The encoded dataset on disk, and the batches that are read from it.

In: encoded record batches. Out: Arrow files with a manifest, and batches in an order given by (seed, epoch).
Neighbours: ``features`` writes it, ``training`` reads it, ``data.ingest`` serves it to other hosts.
"""

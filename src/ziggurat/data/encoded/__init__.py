"""Stores the encoded dataset on disk and reads batches from it.

In: encoded record batches. Out: Arrow files with a manifest, and batches in an order determined by (seed, epoch).
Neighbours: ``features`` writes it, ``training`` reads it, ``data.ingest`` serves it to other hosts.
"""

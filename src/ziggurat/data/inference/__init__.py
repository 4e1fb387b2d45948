"""Infers what ``ziggurat init`` writes about raw logs: format, header, column types, label, split.

In: some files, which are sampled. Out: an :class:`~ziggurat.data.inference.roles.Inference` with a reason for each
guess. Neighbours: ``data.readers`` parses the sample, ``cli.drafts.text`` prints the result.
"""

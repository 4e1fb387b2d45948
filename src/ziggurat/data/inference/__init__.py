"""What ``ziggurat init`` infers about raw logs: format, header, column types, label, split.

In: a sample of some files. Out: an :class:`~ziggurat.data.inference.roles.Inference` with a reason for each guess.
Neighbours: ``data.readers`` parses the sample, ``cli.init_yaml`` prints the result.
"""

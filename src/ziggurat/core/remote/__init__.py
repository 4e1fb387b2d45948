"""Places that a URL names: which of them a config may name, how their file system is opened, and what its errors mean.

In: ``s3://BUCKET/PREFIX``, ``https://HOST/FILE`` and other URLs that fsspec supports. Out: its file system, a reader of
one file, or an error that a user can act on. Neighbours: ``checkpoint.store`` keeps checkpoints there, and
``data.readers`` reads logs from there.
"""

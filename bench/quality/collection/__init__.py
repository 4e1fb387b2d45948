"""The collection of data sets on which the config of ``ziggurat init`` is judged: raw files as people bring them.

In: the package index, ``--data`` and a generator. Out: for each set the files of one log, and its label.
"""

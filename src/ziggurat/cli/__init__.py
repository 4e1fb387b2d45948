"""The command line: one short file per command, a thin layer over the library.

In: arguments. Out: text, an exit status, and what the library writes. Neighbours: ``training.api`` does the work.
"""

"""What parts from outside the package promise, checked with a few rows before anything is prepared or trained.

In: configs of parts and the sizes they are built for. Out: nothing, or an error that names the part, what it returned
and what is allowed. Neighbours: ``training.experiment`` checks the parts that a config names; ``extension_testing``
offers longer checks to the tests of whoever writes a part.
"""

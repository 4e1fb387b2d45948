"""Optimizers for dense parameters and for table rows, and how learning rates change over a run.

In: parameters by name, the settings of an experiment. Out: optimizers for the dense part (``dense``: torch's, and our
own in ``shampoo``), the arguments with which TorchRec fuses a table's optimizer into backward (``rows``), a
learning-rate multiplier for both (``schedule``), and a moving average of the weights (``average``).
Neighbours: ``embeddings`` applies the row optimizers, ``training`` the rest. Import the submodules.
"""

"""Which optimizer serves which parameter, and how learning rates change over a run.

In: parameters by name, the settings of an experiment. Out: optimizers for the dense part (``dense``), torch's and our
own (``shampoo``), what TorchRec needs to fuse a table's optimizer into backward (``rows``), a multiplier for both
(``schedule``), and the weights' moving average (``average``).
Neighbours: ``embeddings`` applies the row optimizers, ``training`` the rest. Import the submodules.
"""

"""The tower transform: pooled rows are exchanged within hosts first, then between hosts, tower by tower.

In: pooled rows of this rank's tables for the global batch. Out: the fields of this rank's examples. ``exchanges`` are
the two exchanges with their gradients, ``host_memory`` is shared memory for the first one, ``host_stage`` puts that
into TorchRec's lookup, ``transform`` does the rest.

Source: Luo et al., "Disaggregated Multi-Tower", arXiv 2403.00877, section 3.1.
"""

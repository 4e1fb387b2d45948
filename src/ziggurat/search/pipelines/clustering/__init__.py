"""Which columns share a pipeline: their descriptors, the network that clusters them, and the policy that it is."""

"""Draws a partition of features among towers: the map of the features, and the load of each tower."""

"""The page of a scaling sweep, or of several sweeps compared."""

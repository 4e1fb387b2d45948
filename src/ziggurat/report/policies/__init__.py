"""The page of a run of policies."""

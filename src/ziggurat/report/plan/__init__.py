"""The page of a sharding plan, and the comparison of several planners."""

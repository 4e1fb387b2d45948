"""The page at ``/`` for people, and the figures that it shows."""

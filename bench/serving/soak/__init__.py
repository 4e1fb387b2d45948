"""Serving for long, while versions arrive: a client that keeps all answers, and disks that fail."""

"""Serving beyond one machine: exports in object stores, and replicas on the hosts of a Ray cluster."""

"""What every service on a network needs: a token, TLS, bounds, fair turns, and refusals that tell no secrets.

In: calls from anywhere. Out: calls by those who know the token, within bounds. Neighbours: ``data/ingest`` is such a
service; ``core/untrusted.py`` reads the files of tokens and certificates.
"""

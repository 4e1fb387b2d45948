"""The proxy: a small model of the training rows that finds out which values of a table are alike.

In: staged rows. Out: a vector a value, for the encoders that ask for it.
Neighbours: ``features.preparation.fitted`` trains it before tables are fitted; encoders of
``features.encoders.compressed`` are fitted with what it learned.
"""

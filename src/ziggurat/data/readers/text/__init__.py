"""Reads text files as blocks of whole records, independent of the record format."""

"""Cells as values of their declared type: text, typed columns, times and lists in brackets.

In: Arrow columns as a file holds them. Out: columns of the declared type, and a reason for each cell that has none.
"""

"""Converts cells to values of their declared type: text, typed columns, times and lists in brackets.

In: Arrow columns as read from a file. Out: columns of the declared type, and a reason for each cell that was rejected.
"""

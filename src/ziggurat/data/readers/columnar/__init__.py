"""What all columnar sources share: columns by path, conversion, blocks with resumable positions, complete rows.

In: an open :class:`~ziggurat.data.readers.columnar.file.ColumnarFile` of any format. Out: raw blocks, or complete rows.
"""

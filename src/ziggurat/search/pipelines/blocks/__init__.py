"""What a pipeline makes of a column: blocks of numbers, fitted on training rows alone."""

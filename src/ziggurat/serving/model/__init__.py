"""From raw rows to predictions: inputs, look-ups of rows, and the dense part."""

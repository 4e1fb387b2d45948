"""libsvm, libfm and libffm text: tokens, columns of numbers, and the block reader."""

"""A model with its tables in the format of ONNX."""

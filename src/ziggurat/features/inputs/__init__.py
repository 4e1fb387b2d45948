"""Features of a config -> the inputs of the model, each of which is one number or one column of ids."""

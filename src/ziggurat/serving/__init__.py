"""From an exported model to answers: what is read from its folder, how rows are looked up, and who may ask."""

"""The folder of an exported model: its format, and how it is written and read."""

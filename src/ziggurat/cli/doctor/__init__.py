"""`ziggurat doctor`: the command, and what it checks."""

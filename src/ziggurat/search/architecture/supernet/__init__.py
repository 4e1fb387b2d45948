"""One training that finds probabilities of all choices: the super-net, its steps, and what it saves."""

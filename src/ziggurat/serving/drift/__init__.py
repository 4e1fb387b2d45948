"""How served traffic differs from the validation: scores as PSI, and the share of unknown ids."""

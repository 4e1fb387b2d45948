"""What an architecture search chooses from: decisions, super-modules that hold all choices, and their expected cost."""

"""The folder of a run: what its files are called and hold, and how they are opened, checked and continued."""

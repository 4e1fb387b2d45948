"""The commands ``ziggurat search …``, one file each."""

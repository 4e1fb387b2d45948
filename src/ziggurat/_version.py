"""The version of ziggurat: the single source, read by the build and by every module that records it."""

__version__ = "0.1.0"

"""Arrow IPC files and streams, which Feather files are too, as a source."""

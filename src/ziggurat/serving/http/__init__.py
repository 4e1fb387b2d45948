"""The HTTP interface of a served model."""

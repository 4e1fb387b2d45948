"""Tables and queries of SQLite and DuckDB files as sources."""

"""What several commands print: tables and lines."""

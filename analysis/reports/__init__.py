"""The report: one page of tables and figures, and where they come from."""

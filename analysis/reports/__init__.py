"""The report: one page of tables and figures, and the origin of the runs."""

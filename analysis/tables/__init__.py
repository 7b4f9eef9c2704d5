"""Tables of what runs have returned, a row per format, condition, task or run, for figures, reports and commands."""

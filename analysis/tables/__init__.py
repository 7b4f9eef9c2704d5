"""Tables of the scores of runs, a row per format, condition, task or run, for figures, reports and commands."""

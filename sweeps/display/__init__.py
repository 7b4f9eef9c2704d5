"""Output of a sweep: progress, status and dry run."""

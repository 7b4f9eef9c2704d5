"""What a sweep prints: progress, status, and what it would do."""

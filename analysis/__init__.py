"""roundoff."""

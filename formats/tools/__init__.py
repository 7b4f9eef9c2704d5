"""Looking at formats, and proving them."""

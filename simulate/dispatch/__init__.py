"""The mode that every operation passes through, and its treatment of operations."""

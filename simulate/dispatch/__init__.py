"""The mode that every operation passes through, and what it does with one."""

"""The worlds that agents act in: opened by name, stepped in parallel, and their rewards."""

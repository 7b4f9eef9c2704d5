"""What composite operations are made of, a file per subject."""

"""What a step finds around it, and stand-ins for that while it is traced."""

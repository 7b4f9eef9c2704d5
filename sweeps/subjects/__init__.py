"""What runs are of: agents, or a program of the user's."""

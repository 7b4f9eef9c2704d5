"""Updates as compiled programs, of one agent or of a population."""

"""Training steps and populations as compiled programs."""

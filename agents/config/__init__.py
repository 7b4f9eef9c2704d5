"""What a run is given: its keys, their defaults, and which of them go together."""

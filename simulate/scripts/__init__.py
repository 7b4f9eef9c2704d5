"""Python scripts in a simulation, unchanged: run as ``python`` runs them, and judged by their output."""

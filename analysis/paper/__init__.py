"""The paper's numbers next to ours."""

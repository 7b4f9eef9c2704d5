"""State that a step uses from outside, and stand-ins for it during tracing."""

"""The float64 twin of every value, and the errors seen against it."""

"""The graph of a step: traced, written with roundings, tidied, compiled."""

"""A2C: advantage actor-critic, synchronous."""

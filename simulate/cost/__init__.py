"""Counting what a simulated program costs: products, bytes moved, memory."""

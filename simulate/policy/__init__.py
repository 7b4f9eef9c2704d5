"""Policies, which say what arithmetic is used where, their rules, and the places that rules name."""

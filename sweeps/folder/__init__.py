"""The folder of a sweep: what is in it, who works on what, and how far it is."""

"""The shared base of all formats: interface, names, modes, random bits and devices."""

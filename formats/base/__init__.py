"""What all formats share: the interface, names, modes, random bits, where tensors lie."""

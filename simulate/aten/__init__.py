"""What the operations of ATen are: what they compute, move, contract, and on which tensors."""

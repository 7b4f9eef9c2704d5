"""Facts about ATen operations: values they compute, move or contract, and the tensors that they use."""
